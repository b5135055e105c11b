"""The methods of the service, on an agent: which there are, what they do, what they answer."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ...agent import exit_status
from ...agent.agent import Agent
from ...agent.errors import UsageError
from ...agent.lifecycle.on_agreement import too_many_saves
from ...agent.lifecycle.state import Phase
from ...proto.frozen import replace
from ...proto.progress import Progress
from ...rendezvous.agreements import MAX_SAVES, Act
from ...rendezvous.records import RoundPhase
from ..control_socket import Service
from . import describe
from .followers import EventFollower, LogFollower
from .messages import (
    Done,
    DrainRequest,
    EventsRequest,
    Goodput,
    Job,
    JobRequest,
    LogsRequest,
    Nothing,
    RestartRoundRequest,
    SaveRequest,
    SetWatchRequest,
    StackGroup,
    Stacks,
    StacksRequest,
    Status,
    StatusRequest,
    StopRequest,
    Workers,
)

PREFIX = "/elastic.control.v1.Control/"
STOPPED = exit_status.SIGNALLED + signal.SIGTERM
"""The exit status of an agent that was asked to stop."""
REASON_MAX = 200
"""Characters of a reason."""


class NotNow(UsageError):
    """This agent cannot do it as it stands. One line."""


class Method(NamedTuple):
    """One method of the service: its request, its function, and how it is called."""

    request: type[Any]
    call: Callable[[Service, Any, str], object]
    """From the service, the request and who asks; returns the answer, or a follower."""
    reads: bool = True
    """It changes nothing."""
    waits: bool = False
    """It takes time, so it has a thread of its own."""
    lists: bool = False
    """It lists all nodes of the round, which are read from the store where the announcement lists only some."""
    streams: bool = False


def agent_of(service: Service) -> Agent:
    """The agent, which was begun. Raises NotNow."""
    if service.agent is None:
        raise NotNow("this agent has not started yet; ask again")
    return service.agent


def reads_nodes(service: Service) -> bool:
    """Whether the nodes of the round are in the store, and not in its announcement."""
    seen = service.agent.known().node.latest_round if service.agent is not None else None
    return seen is not None and seen.crowd is not None


def status(service: Service, request: StatusRequest, who: str) -> Status:
    """Where this node stands."""
    agent = agent_of(service)
    found, seen = agent.status(), agent.known().node.latest_round
    if request.brief and seen is not None and seen.nodes > describe.BRIEF_NODES:
        # Without a look into the store, where the members of a large round are.
        return replace(found, members=tuple(each for each in found.members if each.group_rank == found.group_rank))
    return replace(found, members=agent.members())


def job(service: Service, request: JobRequest, who: str) -> Job:
    """The whole job as this agent reports it."""
    agent = agent_of(service)
    found = describe.job_of(
        agent,
        service.run_id,
        service.began_s,
        service.number,
        members=agent.members(),
        deadline_s=service.deadline_s,
        checkpoints=service.checkpoints,
    )
    return describe.brief(found) if request.brief else found


def workers(service: Service, request: Nothing, who: str) -> Workers:
    """This node's workers."""
    shown: Mapping[int, Progress] = service.progress() if service.progress is not None else {}
    measured = service.goodput().measured
    return describe.workers_of(agent_of(service), shown, service.processes(), measured=measured)


def events(service: Service, request: EventsRequest, who: str) -> EventFollower:
    """What happened, from any point of the kept history on."""
    return EventFollower(service, request)


def goodput(service: Service, request: Nothing, who: str) -> Goodput:
    """Where the seconds of this node's workers went."""
    return service.goodput()


def stacks(service: Service, request: StacksRequest, who: str) -> Stacks:
    """Where this node's workers stand, in Python, and in native code if asked for. Takes 10 ms a worker and more."""
    from ..actions.stacks import native, stacks_of

    agent = agent_of(service)
    found = describe.workers_of(agent, {}, service.processes())
    pids = {
        each.pid: each.rank
        for each in found.workers
        if each.state != "exited" and (not request.ranks or each.rank in request.ranks)
    }
    dumped = stacks_of(list(pids))
    groups = tuple(
        StackGroup(tuple(pids[one.pid] for one in group), group[0].at, all(one.waits for one in group), group[0].text)
        for group in dumped.groups
    )
    return Stacks(agent.name, found.round, groups, tuple(native(dumped)) if request.native else ())


def logs(service: Service, request: LogsRequest, who: str) -> LogFollower:
    """What this node's workers write."""
    return LogFollower(agent_of(service), request, service.wake)


def drain(service: Service, request: DrainRequest, who: str) -> Done:
    """This node leaves the job in order, and ends with PREEMPTED, or with 0 if its workers had finished."""
    agent = _going(service)
    finished = agent.known().node.finished
    done = leave(agent, _because("drained", request.reason, who))
    if not finished:
        return done
    return Done(f"{agent.name} was asked to leave the job; its workers have finished, so it ends with {exit_status.OK}")


def leave(agent: Agent, reason: str) -> Done:
    """As `drain`, and also of an agent that has not started yet, or is ending."""
    agent.leave(reason)
    return _unless_ended(agent, f"{agent.name} was asked to leave the job; it ends with {exit_status.PREEMPTED}")


def stop(service: Service, request: StopRequest, who: str) -> Done:
    """This node stops as by SIGTERM, or all of the job at its next step."""
    agent = _going(service)
    if not request.job and not request.requeue:
        return stop_node(agent, request.reason, who)
    because = _because("stopped", request.reason, who)
    agent.ask(Act.PREEMPT if request.requeue else Act.KILL, because)
    ends = f"{exit_status.PREEMPTED}, to be started again" if request.requeue else f"{exit_status.KILL_SWITCH}"
    return Done(f"all ranks were asked to save at their next step and exit; every agent ends with {ends}")


def stop_node(agent: Agent, reason: str, who: str) -> Done:
    """As by SIGTERM, and also of an agent that has not started yet, or is ending."""
    agent.stop(_because("stopped", reason, who))
    return _unless_ended(agent, f"{agent.name} was asked to stop, as by SIGTERM; it ends with {STOPPED}")


def _unless_ended(agent: Agent, text: str) -> Done:
    node = agent.known().node
    return Done(f"{agent.name} has ended already: {node.because}" if node.phase is Phase.ENDED else text)


def restart_round(service: Service, request: RestartRoundRequest, who: str) -> Done:
    """All ranks save at their next step, and are started again; nobody is charged. Raises NotNow where no round runs:
    the next one would be begun twice."""
    agent = _going(service)
    node = agent.known().node
    if node.latest_round is None or node.latest_round.phase is not RoundPhase.RUNNING:
        raise NotNow(f"no round runs now ({node.because}), so there is nothing to restart")
    agent.ask(Act.RESTART, _because("restart asked for", request.reason, who))
    return Done(
        "all ranks were asked to save at their next step, and are started again then; workers without a Run of "
        "elastic_agent.worker go on instead"
    )


def save(service: Service, request: SaveRequest, who: str) -> Done:
    """All ranks save at their next step, and go on. Raises NotNow where too many others are waited for."""
    agent = _going(service)
    if too_many_saves(agent.known().node, request.label or "asked"):
        raise NotNow(
            f"{MAX_SAVES} checkpoints that were asked for are not made yet: ask again once they are; a script without "
            "a Run of elastic_agent.worker makes none"
        )
    agent.ask(Act.SAVE, _because("checkpoint asked for", request.reason, who), request.label or "asked")
    return Done(
        f"all ranks were asked for a checkpoint at their next step, with the label {request.label or 'asked'!r}; it is "
        "made once all workers have a Run of elastic_agent.worker"
    )


def set_watch(service: Service, request: SetWatchRequest, who: str) -> Done:
    """What this agent watches, from now on."""
    _going(service)
    if service.set_watch is None:
        raise NotNow("this agent takes no watches")
    return Done(service.set_watch(request.names, request.table))


def _going(service: Service) -> Agent:
    agent = agent_of(service)
    if agent.known().node.phase in (Phase.ENDING, Phase.ENDED):
        raise NotNow(f"{agent.name} is ending: {agent.known().node.because}")
    return agent


def _because(what: str, reason: str, who: str) -> str:
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in reason).split())[:REASON_MAX]
    return f"{what} by {who}" + (f": {text}" if text else "")


METHODS: dict[str, Method] = {
    "Status": Method(StatusRequest, status, lists=True),
    "Job": Method(JobRequest, job, lists=True),
    "Workers": Method(Nothing, workers),
    "Events": Method(EventsRequest, events, streams=True),
    "Goodput": Method(Nothing, goodput),
    "Stacks": Method(StacksRequest, stacks, waits=True),
    "Logs": Method(LogsRequest, logs, streams=True),
    "Drain": Method(DrainRequest, drain, reads=False),
    "Stop": Method(StopRequest, stop, reads=False),
    "RestartRound": Method(RestartRoundRequest, restart_round, reads=False),
    "Save": Method(SaveRequest, save, reads=False),
    "SetWatch": Method(SetWatchRequest, set_watch, reads=False, waits=True),
}
