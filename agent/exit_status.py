"""The agent's exit statuses, and the text of those with which a job ends. docs/exit-codes.md explains them to users.

`lifecycle/verdicts.py` and the rules beside it add what led there, as in "the job waited too long for nodes: 1 of at
least 2 nodes joined". `rendezvous/coordinator/explain.py` says which nodes are missing.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..proto import endings
from ..rendezvous.records import Outcome

OK = 0
WORKER_FAILED = 1
USAGE = 2
INTERNAL = 70
HOST_FAILED = 71
PREEMPTED = endings.PREEMPTED
"""Asked to leave, or a worker asked for the end of the job: start it again. Also the exit code of that worker."""
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

OF_OUTCOME: Mapping[Outcome, int] = {
    Outcome.SUCCEEDED: OK,
    Outcome.FAILED: WORKER_FAILED,
    Outcome.JOIN_TIMED_OUT: JOIN_TIMED_OUT,
    Outcome.UNFINISHED: UNFINISHED,
    Outcome.ABANDONED: JOIN_TIMED_OUT,
    Outcome.MISCONFIGURED: USAGE,
    Outcome.KILLED: KILL_SWITCH,
    Outcome.PREEMPTED: PREEMPTED,
}
"""Exit status of a node that had not finished when the rendezvous closed."""

TEXT: Mapping[Outcome, str] = {
    Outcome.SUCCEEDED: "succeeded",
    Outcome.FAILED: "failed",
    Outcome.JOIN_TIMED_OUT: "waited too long for nodes",
    Outcome.UNFINISHED: "ended unfinished",
    Outcome.ABANDONED: "was abandoned",
    Outcome.MISCONFIGURED: "cannot begin",
    Outcome.KILLED: "was ended on request",
    Outcome.PREEMPTED: "was preempted",
}
"""How the sentence on the job's end begins, after "the job"."""
