"""The error tree: one type per situation a caller can act on, each with its exit status.

docs/exit-codes.md explains the statuses to users.
"""

from __future__ import annotations

from ..rendezvous.failures import WorkerFailure


class AgentError(Exception):
    """Root of everything that `launch` raises. `exit_code` is what the command line exits with."""

    exit_code: int = 1

    def __init__(self, message: str, *, node: str = "") -> None:
        super().__init__(message)
        self.node = node
        """Name of the node that it happened on; empty where it happened before there was one."""
        self.told = False
        """Whether people have been told on stderr already."""

    @property
    def rank(self) -> int | None:
        """Global rank of the worker that caused it; None if none did."""
        return None

    @property
    def worker_exit_code(self) -> int | None:
        """That worker's exit code, negative for the signal that killed it."""
        return None

    @property
    def error_file(self) -> str:
        """Path on `node` of what that worker wrote of its end; empty if it wrote nothing."""
        return ""

    def __reduce__(self) -> tuple[object, ...]:
        # A scheduler's own processes hand errors on, and what an error knows besides its message goes with it.
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[AgentError], args: tuple[object, ...], state: dict[str, object]) -> AgentError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class UsageError(AgentError):
    """The caller asked for something that cannot be: a flag, a value, a file that is not there."""

    exit_code = 2


class WorkersFailed(AgentError):
    """A worker failed and could not be restarted, here or on another node."""

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        cause: WorkerFailure | None,
        failures: tuple[WorkerFailure, ...] = (),
        traceback: str = "",
        node: str = "",
    ) -> None:
        super().__init__(message, node=cause.node if cause else node)
        self.cause = cause
        """The failure that ended the job, as far as this node knows."""
        self.failures = failures
        """This node's own worker failures in the last round, in the order seen."""
        self.traceback = traceback
        """Where the worker that caused it failed, as it wrote itself; empty if it did not, or lived on another node."""

    @property
    def rank(self) -> int | None:
        return self.cause.rank if self.cause else None

    @property
    def worker_exit_code(self) -> int | None:
        return self.cause.exit_code if self.cause else None

    @property
    def error_file(self) -> str:
        return self.cause.error_file if self.cause else ""


class RestartForbidden(WorkersFailed):
    """A worker exited with a code that forbids a restart (--no-restart-codes), here or on another node."""

    exit_code = 93


class Preempted(AgentError):
    """Asked to leave (drained); workers were stopped within their grace."""

    exit_code = 75


class RendezvousTimedOut(AgentError):
    """Not enough nodes came within the join timeout, or no place freed for a spare."""

    exit_code = 76


class OtherJob(AgentError):
    """The run id is taken by a job that was asked for something else; this node has started nothing."""

    exit_code = 78


class OtherVersion(AgentError):
    """The run id is taken by a job whose agents speak another protocol version; this node has started nothing."""

    exit_code = 79


class StoreLost(AgentError):
    """The store could not be reached, was not ours, or went away for longer than `store_grace`."""

    exit_code = 80


class FinalisationTimedOut(AgentError):
    """This node was still working when the finalisation barrier of the others ran out."""

    exit_code = 82


class StoppedBySignal(AgentError):
    """The agent was stopped by a signal."""

    def __init__(self, message: str, *, signum: int, node: str = "") -> None:
        super().__init__(message, node=node)
        self.signum = signum
        self.exit_code = 128 + signum


class HostFailed(AgentError):
    """This machine took the workers again and again, or refuses the agent what it needs: processes, descriptors."""

    exit_code = 71


class InternalError(AgentError):
    """The agent itself could not go on: a broken promise of our own."""

    exit_code = 70


def refusal(error: AgentError | OSError) -> str:
    """What to say of something that could not be done on this node; where the system refused it, where to look."""
    return f"{error}; see this node's limits (ulimit -a)" if isinstance(error, OSError) else str(error)


def is_of_machine(error: AgentError | OSError) -> bool:
    """Whether the system refused it, whatever was asked for."""
    return isinstance(error, OSError | HostFailed)
