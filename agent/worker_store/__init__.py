"""The workers' store: a TCPStore server in Python, which one process beside the agent of group rank 0 runs.

Imports a little of the standard library and nothing of ours outside this folder, because the nursery forks that process
and imports it there.
"""
