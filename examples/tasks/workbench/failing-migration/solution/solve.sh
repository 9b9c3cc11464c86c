#!/bin/bash
set -euo pipefail
cp /solution/0003_split_names.sql /workspace/shopdb/migrations/
python3 /solution/apply.py
