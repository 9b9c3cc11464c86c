#!/bin/bash
set -euo pipefail
files=$(ls)
printf '%s\n' "$files" > listing.txt
