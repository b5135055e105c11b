"""The error tree: one type per situation a caller can act on, each with its exit status.

docs/exit-codes.md explains the statuses to users.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from ..rendezvous.failures import CausedByWorker, WorkerFailure
from . import exit_status


class AgentError(Exception):
    """Root of everything that `launch` raises. `exit_code` is what the command line exits with."""

    exit_code: int = exit_status.WORKER_FAILED

    def __init__(self, message: str, *, node: str = "") -> None:
        super().__init__(message)
        self.node = node
        """Name of the node that it happened on; empty where it happened before there was one."""
        self.reported = False
        """Whether stderr shows it already."""

    @property
    def told(self) -> bool:
        """The earlier name of `reported`."""
        return self.reported

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
        """Path on `node` of that worker's error file; empty if it wrote none."""
        return ""

    def __reduce__(self) -> tuple[object, ...]:
        # A scheduler may pass an error between its processes, with all its attributes.
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[AgentError], args: tuple[object, ...], state: dict[str, object]) -> AgentError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class UsageError(AgentError, ValueError):
    """The caller asked for something that cannot be: a flag, a value, a file that is not there. A ValueError too, which
    is what torchrun raises."""

    exit_code = exit_status.USAGE


class WorkersFailed(CausedByWorker, AgentError):
    """A worker failed and could not be restarted, here or on another node."""

    exit_code = exit_status.WORKER_FAILED

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
        """Traceback of the worker that caused it; empty if it wrote none, or ran on another node."""


class RestartForbidden(WorkersFailed):
    """A worker exited with a code that forbids a restart (--no-restart-codes), here or on another node."""

    exit_code = exit_status.NO_RESTART


class Preempted(AgentError):
    """Asked to leave (drained); workers were stopped within their grace."""

    exit_code = exit_status.PREEMPTED


class RendezvousTimedOut(AgentError):
    """Not enough nodes joined within the join timeout, or no place came free for a spare."""

    exit_code = exit_status.JOIN_TIMED_OUT


class OtherJob(AgentError):
    """Another job, with another command or other nodes, has the run id; this node has started nothing."""

    exit_code = exit_status.OTHER_JOB


class OtherVersion(AgentError):
    """A job whose agents have another protocol version has the run id; this node has started nothing."""

    exit_code = exit_status.OTHER_VERSION


class StoreLost(AgentError):
    """The store could not be reached, was not ours, or did not answer for longer than `store_grace`."""

    exit_code = exit_status.STORE_LOST


class FinalisationTimedOut(AgentError):
    """This node was still working when the finalisation barrier of the other nodes ended."""

    exit_code = exit_status.UNFINISHED


class KillSwitch(AgentError):
    """Somebody used the kill switch: the job is not to be started again."""

    exit_code = exit_status.KILL_SWITCH


class StoppedBySignal(AgentError):
    """The agent was stopped by a signal."""

    def __init__(self, message: str, *, signum: int, node: str = "") -> None:
        super().__init__(message, node=node)
        self.signum = signum
        self.exit_code = exit_status.SIGNALLED + signum


class HostFailed(AgentError):
    """This host killed the workers repeatedly, or refuses what the agent needs: processes, descriptors."""

    exit_code = exit_status.HOST_FAILED


class InternalError(AgentError):
    """The agent itself could not go on, through a mistake in it."""

    exit_code = exit_status.INTERNAL


def refusal(error: AgentError | OSError) -> str:
    """The sentence for something that this node could not do; where the system refused it, with where to look."""
    limits = isinstance(error, OSError) and error.errno != errno.EADDRINUSE  # a port that is taken is no limit
    return f"{error}; see this node's limits (ulimit -a)" if limits else str(error)


def is_of_host(error: AgentError | OSError) -> bool:
    """Whether the host refused it, whatever was asked for."""
    return isinstance(error, OSError | HostFailed)


def in_any_case(*steps: Callable[[], object]) -> None:
    """Do each step, whatever the ones before it raise; then raise the first error."""
    errors: list[BaseException] = []
    for step in steps:
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            errors.append(error)
    if errors:
        raise errors[0]


def is_thread_refusal(error: RuntimeError) -> bool:
    """Whether this is what Python raises where the host refuses a thread (pthread_create(3), EAGAIN)."""
    return "start new thread" in str(error)
