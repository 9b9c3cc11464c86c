#!/bin/bash
set -euo pipefail
python3 /solution/analyse.py
