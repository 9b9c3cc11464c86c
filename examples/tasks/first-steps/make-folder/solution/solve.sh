#!/bin/bash
set -euo pipefail
mkdir -p build/out
