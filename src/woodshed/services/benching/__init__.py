"""The measurements behind ``woodshed bench``: of sandboxes, with yardsticks side by side, and of queues.

::

    sandbox.py     the whole of it: find, measure in rounds, density, churn, ratios
    subject.py     one thing under measurement: its bursts, and why some it has not
    root.py        the small root file system that all of them start from
    shed.py        an engine of ours
    raw.py, raw.c  the limit: the same system calls with nothing around them, compiled on the spot
    bubblewrap.py, oci.py, podman.py    what others use
    external.py    runs a foreign command many times over, in a small process (timed.py)
    rounds.py      interleaves the bursts and waits for quiet
    density.py     idle sandboxes and what they weigh; churn
    left.py        whether anything is left of them
    figures.py     percentiles, ratios, targets
    queue.py       ``woodshed bench queue``: what leaving attempts to workers costs
    thousand.py    ``woodshed bench thousand``: what becomes of attempts amid faults; faulty.py has these
    void.py        an engine, an agent and a verifier that do nothing
    postgres.py    a database server of the benchmark's own
"""
