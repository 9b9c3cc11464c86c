#!/bin/bash
set -euo pipefail
cp /solution/check.py /solution/cycles.py /workspace/deploycheck/
