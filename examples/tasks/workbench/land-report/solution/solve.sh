#!/bin/bash
set -euo pipefail
cd /workspace
cp /solution/quarter.py /solution/__main__.py reporting/
python3 -m reporting 2026-q3 /reports
