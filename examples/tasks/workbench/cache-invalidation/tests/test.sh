#!/bin/bash
mkdir -p /logs/verifier
python3 -m pytest -c /tests/pytest.ini --rootdir=/tests -p no:cacheprovider -q /tests --junitxml=/logs/verifier/junit.xml
status=$?
if [ $status -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
exit $status
