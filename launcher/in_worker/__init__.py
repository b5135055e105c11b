"""Code of the launcher for worker processes: functions of a Python caller, and `--run-path`.

The modules that run in a worker import only the standard library; `functions.py`, which runs in the agent, also
`agent`.
"""
