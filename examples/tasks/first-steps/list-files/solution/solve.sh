#!/bin/bash
set -euo pipefail
ls > listing.txt
