"""Sandboxes that another program makes (Docker, Podman, runsc), with our PID 1 inside: what all of them share.

::

    engine.py   RemoteEngine: specs and policies in, sandboxes out; a Maker starts the container
    box.py      RemoteSandbox: the parts of a native one, over another road
    road.py     the engine's end of that road; inside/relay.py says what travels on it
    inside/     runs in the container: serve.py is PID 1, state.py knows the files of the start
    python.py   the Python that runs it, bound from this host: the image needs none

What the container's runtime holds: namespaces, mounts, the cgroup. What PID 1 holds: capabilities, no_new_privs,
seccomp, rlimits. Nothing is left to the image, and a command costs a message, not a call of the runtime.
"""
