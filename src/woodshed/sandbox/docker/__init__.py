"""The docker engine: sandboxes in containers of a Docker Engine API socket, Docker's or Podman's.

``api.py`` speaks to the socket, ``engine.py`` makes containers; everything else is ``sandbox/remote``.
"""
