#!/bin/bash
set -euo pipefail
grep -rl TODO src > todo.txt
