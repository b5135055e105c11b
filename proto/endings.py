"""How workers and their agent tell each other that a job is to end, and that it is complete: names and forms.

A worker exits with `PREEMPTED` when it has saved and the job is to be started again. Signals that the agent passes on
are in `FORWARDED`. A script that says that its training is complete leaves `MARK` beside its checkpoints; it holds the
digest of the command that `COMMAND` gives, so that the same command with other arguments trains on.
"""

from __future__ import annotations

PREEMPTED = 75
"""Exit code by which a worker asks for the end of the job, which is to be started again later; EX_TEMPFAIL of
sysexits.h, and the exit status of the agents then."""
FORWARDED = "ELASTIC_AGENT_FORWARD_SIGNALS"
"""Variable of workers: numbers of the signals that are passed on to them, with commas. They are ignored in a worker
until its script, or the worker library, handles them."""
ASKING = "ELASTIC_AGENT_ASK_SIGNALS"
"""Variable of workers: numbers of the signals by which their agent is asked to kill or save, with commas. A worker
ignores them unless its script handles them."""
COMMAND = "ELASTIC_AGENT_COMMAND"
"""Variable of workers: digest of the job's command, script and arguments."""
MARK = "complete.json"
"""File beside the checkpoints of a training that is complete; JSON: `step`, `epoch`, `command` as `COMMAND`, `at` for
people."""


def numbers_of(text: str) -> tuple[int, ...]:
    """The signals in the value of `FORWARDED`. Raises ValueError."""
    return tuple(int(number) for number in text.split(",") if number)
