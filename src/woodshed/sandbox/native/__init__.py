"""The native engine: namespaces, overlay and confinement, without a daemon or root."""
