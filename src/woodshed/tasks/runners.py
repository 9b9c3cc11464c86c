"""The scripts that run hidden tests: files for tests/. All find the tests when they run, exit with the runner's status,

and write a report (JUnit or CTRF) and Harbor's reward.txt to /logs/verifier. ``python3 -P`` and ``-I`` keep the
workdir, which the agent wrote, from standing in for the runner's own modules.
"""

from __future__ import annotations

from collections.abc import Mapping

_REWARD = """\
status=$?
if [ $status -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
exit $status
"""
_PYTEST = """\
#!/bin/bash
mkdir -p /logs/verifier
python3 -P -m pytest -c /tests/pytest.ini --rootdir=/tests -p no:cacheprovider -q /tests \\
  --junitxml=/logs/verifier/junit.xml
"""
_SCRIPT = """\
#!/bin/bash
mkdir -p /logs/verifier
python3 {options} /tests/run_checks.py
"""
_NODE = """\
#!/bin/bash
mkdir -p /logs/verifier
node --test --test-reporter=junit --test-reporter-destination=/logs/verifier/junit.xml /tests/*.test.mjs
"""
RUN_CHECKS = '''\
"""Runs every check_*.py beside this file, in order, and reports in CTRF. A check passes when it runs to its end.

No imports but built-in modules: this is the whole cost of a check on top of the interpreter's start.
"""

import sys
from posix import getcwd, listdir
from time import monotonic

TESTS = __file__.rpartition("/")[0] or "."
REPORT = "/logs/verifier/ctrf.json"


def run(name):
    path = f"{TESTS}/{name}.py"
    with open(path, "rb") as file:
        source = file.read()
    exec(compile(source, path, "exec"), {"__name__": name, "__file__": path})


def quote(text):
    plain = [c if " " <= c <= "~" and c not in '"\\\\' else f"\\\\u{ord(c) & 0xffff:04x}" for c in text]
    return '"' + "".join(plain) + '"'


def main(show=sys.__excepthook__, clock=monotonic):
    names = sorted(name[:-3] for name in listdir(TESTS) if name.startswith("check_") and name.endswith(".py"))
    sys.path[:0] = [getcwd(), TESTS]
    results, failed = [], 0
    for name in names:
        started, status = clock(), "passed"
        try:
            run(name)
        except BaseException as error:
            status, failed = "failed", failed + 1
            sys.stderr.write(f"{name}: failed\\n")
            show(type(error), error, error.__traceback__)
        duration = int((clock() - started) * 1000)
        results.append(f'{{"name":{quote(name)},"status":"{status}","duration":{duration}}}')
    with open(REPORT, "w") as file:
        file.write(
            '{"results":{"tool":{"name":"run_checks"},"summary":{"tests":%d,"passed":%d,"failed":%d,"pending":0,'
            '"skipped":0,"other":0,"start":0,"stop":0},"tests":[%s]}}\\n'
            % (len(names), len(names) - failed, failed, ",".join(results))
        )
    return 1 if failed or not names else 0


if __name__ == "__main__":
    sys.exit(main())
'''


def pytest_files(
    tests: Mapping[str, bytes], *, pythonpath: str = "/workspace", options: Mapping[str, str] | None = None
) -> dict[str, bytes]:
    """``tests`` (pytest modules by path below tests/) with test.sh and pytest.ini. Ids are ``module::name``.

    ``options`` are further lines of pytest.ini. Modules named ``test_*.py`` are always collected.
    """
    chosen = {"junit_family": "xunit1", "pythonpath": pythonpath, **(options or {})}
    if "python_files" in chosen:
        chosen["python_files"] = f"{chosen['python_files'].rstrip()}\n    test_*.py"
    ini = "[pytest]\n" + "".join(f"{name} = {value}\n" for name, value in chosen.items())
    return {**tests, "pytest.ini": ini.encode(), "test.sh": (_PYTEST + _REWARD).encode()}


def script_files(checks: Mapping[str, bytes], *, site: bool = False) -> dict[str, bytes]:
    """``checks`` (check_*.py and what they read) with test.sh and run_checks.py. Ids are the names without ``.py``.

    ``site`` gives the checks the installed packages, at a few milliseconds; without it the standard library.
    """
    script = _SCRIPT.format(options="-I -B" if site else "-I -S -B") + _REWARD
    return {**checks, "run_checks.py": RUN_CHECKS.encode(), "test.sh": script.encode()}


def node_files(tests: Mapping[str, bytes]) -> dict[str, bytes]:
    """``tests`` (*.test.mjs and what they import) with test.sh. Ids are ``test::name``, as Node's reporter has them."""
    return {**tests, "test.sh": (_NODE + _REWARD).encode()}
