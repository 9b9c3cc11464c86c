"""What runs as the fork server and as each sandbox's PID 1: standard library and ctypes only.

A bare interpreter (``-I -S``) imports this folder with its parent packages as empty stand-ins, so that nothing else of
Woodshed, and nothing of the environment it is installed in, is loaded; it must import nothing outside itself.
"""
