"""A model so small that two cores teach it to use tools in minutes, behind a server shaped like vLLM's.

It stands in for a model where learning is to be shown; it never stands in for a server of others.
"""
