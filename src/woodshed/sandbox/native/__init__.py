"""The native engine: namespaces, overlay and confinement, without a daemon or root.

::

    engine process                 fork server                    a box (its own user, mount, pid, net … namespaces)
    ──────────────                 ───────────                    ──────────────────────────────────────────────────
    engine.py   NativeEngine ────▶ inside/server.py ── clone ───▶ inside/init.py, PID 1: confined, starts commands,
    box.py      NativeSandbox ◀──────────── channel ────────────▶ opens files, hands descriptors out
    output.py   pipes ◀───────────────────────────────────────── the commands' standard output and error

``inside/`` runs in the two small processes and loads nothing but itself. The engine reads changes (``capture.py``) from
the upper directory on the host, and writes them there (``restore.py``) before anything is mounted. A box ends when its
channel closes, so nothing outlives the engine's process, however that ends; ``places.py`` sweeps the folders it left.

``snapshots.py`` takes snapshots: a live box gets a new root over its changes (``inside/rebase.py``), which become a
layer that forks share (``layers.py``); ``archive.py`` and ``unpack.py`` carry layers to other machines.

What a box cannot do is in ``inside/confine.py`` (capabilities, seccomp) and ``inside/mounts.py`` (what it sees); each
has its attack in ``tests/security``. Bounds: processes, open files, file size (rlimits), output; memory and CPU by
``cgroups/`` where some can be made; what no mechanism of the kernel holds, the disk first, by ``guard.py``, which looks
while commands run. /tmp, /run and /dev/shm are memory, and no part of the changes. ``meter.py`` measures and freezes.
``probe.py`` says what holds on a machine.
"""
