"""The agent's exit statuses. docs/exit-codes.md explains them to users."""

from __future__ import annotations

OK = 0
WORKER_FAILED = 1
USAGE = 2
INTERNAL = 70
HOST_FAILED = 71
ASKED_TO_LEAVE = 75
JOIN_TIMED_OUT = 76
OTHER_JOB = 78
OTHER_VERSION = 79
STORE_LOST = 80
UNFINISHED = 82
KILL_SWITCH = 83
NO_RESTART = 93
"""Also the exit code by which a worker says that starting it again is of no use."""
SIGNALLED = 128
"""Plus the number of the signal that stopped the agent, as a shell reports it."""
