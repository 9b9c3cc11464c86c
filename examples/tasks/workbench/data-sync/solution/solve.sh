#!/bin/bash
set -euo pipefail
cd /workspace
cp /solution/store.py /solution/sync.py contactsync/
python3 -m contactsync feed/contacts.jsonl warehouse.db
