#!/bin/bash
set -euo pipefail
cp /solution/cache.py /solution/catalogue.py /workspace/catalogue/
