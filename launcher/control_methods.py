"""What a `NodeAgent` can be asked beside its status: the methods of `proto/control.proto`, with its messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..agent.agent import Agent
    from ..control.control_socket import Service
    from ..control.service.messages import Done, Event, Goodput, Job, LogPart, Stacks, Workers

WHO = "this program"
"""Who asks, for people."""


class ControlMethods:
    """Each method may be called from any thread, and but for `stacks`, `set_watch` and streams returns at once."""

    _service: Service
    _agent: Agent

    def job(self) -> Job:
        """The whole job as this node knows it, with ages. See `proto/control.proto`, as for what the others return."""
        from ..control.service.messages import JobRequest
        from ..control.service.methods import job

        return job(self._service, JobRequest(), WHO)

    def workers(self) -> Workers:
        """This node's workers: state, memory, processor time, output."""
        from ..control.service.messages import Nothing
        from ..control.service.methods import workers

        return workers(self._service, Nothing(), WHO)

    def events(self, since: int = 0, *, follow: bool = False) -> Iterator[Event]:
        """What happened, from event number `since` on as far as it is kept; the last so many where it is negative.
        `follow`: and what happens, until the agent ends."""
        from ..control.service.followers import EventFollower, followed
        from ..control.service.messages import EventsRequest

        return followed(self._service, lambda: EventFollower(self._service, EventsRequest(since, follow)))

    def goodput(self) -> Goodput:
        """Where the seconds of this node's workers went, and what each end of a round has cost."""
        return self._service.goodput()

    def stacks(self, ranks: Sequence[int] = (), *, native: bool = False) -> Stacks:
        """Where this node's workers stand, those with equal stacks together, the odd one first. Takes 10 ms a worker
        and more."""
        from ..control.service.messages import StacksRequest
        from ..control.service.methods import stacks

        return stacks(self._service, StacksRequest(tuple(ranks), native), WHO)

    def logs(
        self, ranks: Sequence[int] = (), *, tail_bytes: int = 0, tail_lines: int = 0, follow: bool = False
    ) -> Iterator[LogPart]:
        """What this node's workers have written lately, at most 64 KiB of each stream, and so many bytes and lines of
        it (0: all; -1 lines: none); `follow`: and what they write, over all rounds, until the agent ends."""
        from ..control.service.followers import LogFollower, followed
        from ..control.service.messages import LogsRequest
        from ..control.service.methods import agent_of

        request = LogsRequest(tuple(ranks), tail_bytes, follow, tail_lines)
        return followed(self._service, lambda: LogFollower(agent_of(self._service), request, self._service.wake))

    def restart_round(self, reason: str = "") -> Done:
        """Ask all ranks of the job to save at their next step and be started again; nobody is charged. Workers that use
        `elastic_agent.worker` do. Does not wait."""
        from ..control.service.messages import RestartRoundRequest
        from ..control.service.methods import restart_round

        return restart_round(self._service, RestartRoundRequest(reason), WHO)

    def save(self, reason: str = "", *, label: str = "") -> Done:
        """Ask all ranks of the job for a checkpoint at their next step; it is kept under the label. Workers that use
        `elastic_agent.worker` make it. Does not wait."""
        from ..control.service.messages import SaveRequest
        from ..control.service.methods import save

        return save(self._service, SaveRequest(reason, label), WHO)

    def set_watch(self, names: str | Iterable[str] = "", *, table: str = "") -> Done:
        """Watch this from now on, in place of what `--watch` asked for: usual watches by their names (several: with
        commas, or as a list), or the text of a table; nothing where both are empty. `text` of the answer says what is
        watched. Raises UsageError."""
        from ..control.service.messages import SetWatchRequest
        from ..control.service.methods import set_watch

        text = names if isinstance(names, str) else ",".join(map(str, names))
        return set_watch(self._service, SetWatchRequest(text, table), WHO)

    def drain(self, reason: str = "drained by its scheduler") -> Done:
        """Ask this node to leave the job: it announces its departure to the other nodes and stops its workers within
        their grace; then `run` raises Preempted, or returns if this node's workers had all finished. Does not wait.
        Called before `run`, it takes effect as soon as `run` is called."""
        from ..control.service.methods import leave

        return leave(self._agent, reason)

    def stop(self, reason: str = "", *, job: bool = False, requeue: bool = False) -> Done:
        """Do what SIGTERM does: stop the workers, and `run` raises StoppedBySignal. A second call kills them. Does not
        wait.

        `job`: all ranks of the job save at their next step and exit, and every node's `run` raises KillSwitch.
        `requeue`: the same, and it raises Preempted: the job is to be started again."""
        from ..control.service.messages import StopRequest
        from ..control.service.methods import stop, stop_node

        if not job and not requeue:
            return stop_node(self._agent, reason, WHO)
        return stop(self._service, StopRequest(reason, job, requeue), WHO)
