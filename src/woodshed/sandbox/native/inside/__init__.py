"""What runs as the fork server and as each sandbox's PID 1: standard library and ctypes only.

This folder is imported by a bare interpreter (``-I -S``) as the package ``inside``; it must import nothing of Woodshed.
"""
