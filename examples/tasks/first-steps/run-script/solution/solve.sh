#!/bin/bash
set -euo pipefail
python3 report.py > out.txt
