#!/bin/bash
set -euo pipefail
wc -l < data.csv > count.txt
