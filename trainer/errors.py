"""What a trainer raises."""

from __future__ import annotations

from ..agent.errors import AgentError, UsageError
from ..rendezvous.failures import CausedByWorker, WorkerFailure

TrainerError = AgentError
"""Root of all of them: the errors of the agents, and those below."""


class WrongReturn(UsageError):
    """A creator or an operator gave what the trainer can do nothing with, or the data is of no use."""


class Diverged(UsageError):
    """Two nodes' programs made different calls: nothing was trained on."""


class StateLost(UsageError):
    """In a worker: a call that keeps nothing on disk goes on, and nobody has its state; the program gets
    TrainingFailed."""


class TooManyRestarts(UsageError):
    """In a worker: a call was restarted more often than `max_retries` allows; the program gets TrainingFailed."""


class TrainingFailed(CausedByWorker, AgentError):
    """Workers failed more often than `max_retries` allows. The text has rank and node of the cause."""

    def __init__(
        self, message: str, *, cause: WorkerFailure | None = None, traceback: str = "", node: str = ""
    ) -> None:
        super().__init__(message, node=cause.node if cause else node)
        self.cause = cause
        """The failure that ended the training, as far as this node knows."""
        self.traceback = traceback
        """Traceback of the worker that caused it; empty where a signal ended it."""
