"""Workers' output: read from pipes, written line by line to log files and to the agent's console; log directories.

May import `agent/` and the values in `rendezvous/`.
"""
