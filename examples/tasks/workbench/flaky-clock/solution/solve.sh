#!/bin/bash
set -euo pipefail
cd /workspace
cp /solution/subscription.py /solution/office.py billing/
cp /solution/test_office.py tests/
sed -i 's/ If they fail at night, run them again in the morning\.$/ They do not depend on the time of the day./' README.md
