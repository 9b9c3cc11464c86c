#!/bin/bash
# Makes the virtual environment and installs Woodshed into it. Asks Debian for what Python's venv lacks when root.
set -euo pipefail
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}

fail() { echo "set-up: $1" >&2; exit 2; }

command -v "$PYTHON" >/dev/null || fail "no $PYTHON. Install Python 3.11 or newer, or say make PYTHON=/path/to/python3"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$("$PYTHON" --version) is too old. Install Python 3.11 or newer, or say make PYTHON=/path/to/python3"

if [ ! -x "$VENV/bin/pip" ]; then
  if ! "$PYTHON" -c 'import venv, ensurepip' 2>/dev/null; then
    # Debian splits venv from python3.
    [ "$(id -u)" = 0 ] || fail "Python's venv is missing. Ask an administrator for: apt-get install python3-venv"
    echo "set-up: installing python3-venv"
    apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null
  fi
  echo "set-up: creating $VENV"
  rm -rf "$VENV"
  "$PYTHON" -m venv "$VENV"
fi
echo "set-up: installing woodshed and its tools"
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -e . --group dev

# A CPU build of torch, for the loop that learns (examples/train). Without it that alone is left out, and its tests skip.
torch=torch==2.13.0
[ "$(uname -s)" != Linux ] || torch=$torch+cpu  # a plain one brings gigabytes for graphics cards there
pip() { "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
"$VENV/bin/python" -c 'import torch' 2>/dev/null || pip "$torch" 2>/dev/null ||
  pip --extra-index-url https://download.pytorch.org/whl/cpu "$torch" ||
  echo "set-up: no CPU build of torch could be had; make train-tiny needs one"
