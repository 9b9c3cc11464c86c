#!/bin/bash
set -euo pipefail
cp /solution/importer.py /workspace/contacts/
python3 /solution/apply.py
