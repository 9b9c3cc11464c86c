#!/bin/bash
set -euo pipefail
mv old.txt new.txt
