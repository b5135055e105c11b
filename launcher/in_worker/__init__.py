"""What the launcher runs inside worker processes: functions of a Python caller, and `--run-path`.

The modules that a worker runs import the standard library only.
"""
