#!/bin/bash
set -euo pipefail
cp /solution/retry_after.ts /solution/client.ts /workspace/src/
