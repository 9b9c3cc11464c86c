"""The gvisor engine: sandboxes whose kernel is gVisor's, in a process of its own, for hostile code.

``bundle.py`` writes what runsc is to start, ``engine.py`` starts it; everything else is ``sandbox/remote``.
"""
