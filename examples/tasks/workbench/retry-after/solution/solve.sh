#!/bin/bash
set -euo pipefail
cp /solution/retry_after.py /solution/client.py /workspace/courier/
