"""Network by policy, for any engine: names are answered, connections judged and carried by the engine's own process.

An engine gives :class:`proxy.Egress` listening sockets through which everything of one sandbox arrives. What a name in
the sandbox leads to is an address that we made up, so each connection tells which name it is for; the TLS or HTTP in it
must say the same. Nothing of the sandbox's own is ever asked of a resolver but the names of allowed hosts.
"""
