"""The file of watches: which keys there are, what their values mean, and errors that say where and what is allowed.

Reads TOML; imports `agent.errors` and `control.decisions`, and nothing that reads the host.
"""
