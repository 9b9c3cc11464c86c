#!/bin/bash
set -euo pipefail
cp /solution/users.py /workspace/portal/users.py
python3 /solution/apply.py
