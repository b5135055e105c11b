"""What an agent knows, as messages. Reads snapshots, from any thread; only the members of a large round are read from
the store, once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from ...agent.agent import Agent, Known
from ...agent.lifecycle.state import Verdict
from ...agent.report import AgentEvent
from ...agent.spec import RendezvousSpec
from ...proto.frozen import replace
from ...proto.progress import Progress
from ...rendezvous import failures
from ...rendezvous.coordinator.nodes import Seen
from ...rendezvous.coordinator.state import Rendezvous
from ...rendezvous.records import Member, Round, RoundPhase
from ...rendezvous.text import duration
from ..decisions import capacity
from ..stream import VERSION, Alarm, Checkpoint, Deadline, Entry, Stage
from .messages import Agreement, Capacity, Ending, Event, Job, Node, OtherNodes, Worker, Workers
from .process_files import GONE, ProcessFiles

BRIEF_NODES = 16
"""Nodes above which a brief answer lists only some."""


def job_of(
    agent: Agent,
    run_id: str,
    began_s: float,
    last_event: int,
    *,
    members: Sequence[Member] | None = None,
    deadline_s: float | None = None,
    checkpoints: str = "",
) -> Job:
    """The whole job as this agent reports it. `members`: of the round, if not those that its announcement lists;
    `deadline_s`: when its time ends, since 1970."""
    now, known = time.monotonic(), agent.known()
    seen, state = known.node.latest_round, known.coordinator
    leading = state.leading and known.node.leading
    spec = known.rendezvous
    nodes = _coordinated(state, known.identity, now) if leading else _announced(known, seen, members)
    ended = ending_of(seen.ended if seen else None, seen.members if seen else ())
    return Job(
        run_id=run_id,
        name=agent.name,
        source="coordinator" if leading else "announcement",
        announced_age_s=now - known.announced_s if seen is not None else None,
        phase=seen.phase.value if seen else "",
        because=seen.because if seen else known.node.because,
        round=seen.number if seen else 0,
        round_age_s=now - state.since if leading else None,
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        world_size=seen.world_size if seen and seen.begun else 0,
        restarts=seen.restarts if seen else 0,
        nodes=nodes,
        ended=ended,
        agreement=_agreement(seen),
        outcome=seen.outcome.value if seen and seen.outcome else "",
        finishing=bool(seen and seen.finishing),
        store="" if spec.backend == "memory" else f"{spec.backend} {spec.endpoint}",
        store_trouble=known.node.outage.why,
        lease_s=spec.lease_s if spec.backend != "memory" else 0.0,
        age_s=now - began_s,
        last_event=last_event,
        command=" ".join(spec.command),
        ends_in_s=None if deadline_s is None else deadline_s - time.time(),
        checkpoints=checkpoints,
        capacity=_capacity(nodes, ended, seen, spec, leading),
        store_latency_s=agent.link.own_beats.latency_s if agent.link.own_beats is not None else None,
    )


def brief(job: Job) -> Job:
    """The same without nodes that need no attention, where there are many: those are counted."""
    if len(job.nodes) <= BRIEF_NODES:
        return job
    shown = tuple(each for each in job.nodes if capacity.needs_attention(each, job.lease_s))
    placed = [sum(each.group_rank is not None for each in nodes) for nodes in (job.nodes, shown)]
    others = OtherNodes(len(job.nodes) - len(shown), placed[0] - placed[1])
    return replace(job, nodes=shown, others=others, capacity=None)


def _capacity(
    nodes: tuple[Node, ...], ended: Ending | None, seen: Round | None, spec: RendezvousSpec, leading: bool
) -> Capacity:
    over = seen is not None and (seen.phase is RoundPhase.CLOSED or seen.finishing)
    busy = seen is None or (seen.agreement is not None and not seen.agreement.over)
    # On a hosted store the host coordinates; where the store elects, any node may go.
    keeps = next((node.name for node in nodes if node.own), "") if spec.backend != "etcd" else ""
    return Capacity(
        capacity.needed(nodes, spec.min_nodes, over=over),
        capacity.helpful(nodes, spec.max_nodes, over=over),
        capacity.suspects(nodes, spec.lease_s if leading else 0.0, ended.charged if ended else ""),
        capacity.spare(nodes, spec.min_nodes, keeps, over=over, busy=busy) if leading else (),
    )


def _coordinated(state: Rendezvous, own: str, now: float) -> tuple[Node, ...]:
    """By group rank, then those without a place, by arrival."""
    running = state.phase in (RoundPhase.RUNNING, RoundPhase.OVER)
    places = {member.node: member for member in state.members} if running else {}
    ordered = sorted(state.nodes.values(), key=lambda seen: (_rank(places.get(seen.record.node)), seen.arrival))
    return tuple(_node(seen, places.get(seen.record.node), own, now) for seen in ordered)


def _rank(member: Member | None) -> float:
    return member.group_rank if member is not None else float("inf")


def _node(seen: Seen, member: Member | None, own: str, now: float) -> Node:
    record, mine = seen.record, seen.record.node == own
    return Node(
        name=record.name,
        state="lost" if seen.lost else record.state.value,
        group_rank=member.group_rank if member else None,
        rank_offset=member.rank_offset if member else 0,
        nproc=member.nproc if member else record.nproc,
        heard_age_s=0.0 if mine else round(max(0.0, now - max(seen.heard_at, seen.alive_at)), 3),
        restarts_left=record.restarts_left,
        own=mine,
        because=record.because,
        round=record.round,
        waits=seen.waiting,
        control=record.control,
    )


def _announced(known: Known, seen: Round | None, members: Sequence[Member] | None) -> tuple[Node, ...]:
    """Members of the round, of which this node knows only its own state at first hand."""
    node, own = known.node, known.identity
    restarts_left = known.rules.restarts.max_restarts - node.restarts_used
    return tuple(
        Node(
            name=member.name,
            state=node.phase.value if member.node == own else "unknown",
            group_rank=member.group_rank,
            rank_offset=member.rank_offset,
            nproc=member.nproc,
            heard_age_s=0.0 if member.node == own else None,
            restarts_left=restarts_left if member.node == own else None,
            own=member.node == own,
            because=node.because if member.node == own else "",
            round=seen.number if seen else 0,
            control=member.control,
        )
        for member in (members if members is not None else seen.members if seen and seen.begun else ())
    )


def _agreement(seen: Round | None) -> Agreement | None:
    found = seen.agreement if seen else None
    return Agreement(found.act.value, found.label, found.because, found.at, found.over) if found else None


def ending_of(ended: failures.Ending | None, members: Iterable[Member]) -> Ending | None:
    """How a round ended; the charged node by its name where it is one of these members."""
    if ended is None:
        return None
    names = {member.node: member.name for member in members}
    if ended.failure is not None:
        names.setdefault(ended.charged, ended.failure.node)
    return Ending(
        round=ended.round,
        kind=ended.kind.value,
        because=ended.because,
        charged=names.get(ended.charged, ended.charged),
        rank=ended.failure.rank if ended.failure else None,
        failure=str(ended.failure) if ended.failure else "",
        judged=ended.role.value if ended.failure else "",
    )


def event_of(entry: Entry, node: str, missed: int = 0) -> Event:
    """One entry of the history."""
    made = partial(
        Event, entry.number, entry.time_s, node=node, missed=missed, id=entry.id, cause=entry.cause, form=VERSION
    )
    what = entry.what
    if isinstance(what, AgentEvent):
        return made(
            what.at_s, what="event",
            happened=what.happened, phase=what.phase.value, round=what.round, because=what.because,
            restarts_used=what.restarts_used, failure=str(what.failure) if what.failure else "",
            members=what.members, ended=ending_of(what.ended, what.members),
        )  # fmt: skip
    if isinstance(what, Round):
        return made(
            entry.at_s, what="announced",
            happened="announced", phase=what.phase.value, round=what.number, because=what.because,
            members=what.placed, version=what.version, restarts=what.restarts,
            ended=ending_of(what.ended, what.members), outcome=what.outcome.value if what.outcome else "",
        )  # fmt: skip
    if isinstance(what, Verdict):
        return made(
            entry.at_s, what="concluded",
            happened="concluded", phase="ended", because=what.because,
            failure=str(what.cause) if what.cause else "", exit_code=what.exit_code,
            outcome=what.outcome.value if what.outcome else "",
        )  # fmt: skip
    return _found(made, what)


def _found(made: Callable[..., Event], what: object) -> Event:
    """An event that is no state of the node."""
    if isinstance(what, Stage):
        because = f"round {what.round}: {what.name}" + (f" after {duration(what.took_s)}" if what.took_s else "")
        return made(what.at_s, what="stage", stage=what.name, round=what.round, took_s=what.took_s, because=because)
    if isinstance(what, Checkpoint):
        because = f"checkpoint of step {what.step}, which held the workers up for {duration(what.took_s)}"
        return made(what.at_s, what="checkpoint", step=what.step, round=what.round, took_s=what.took_s, because=because)
    if isinstance(what, Deadline):
        left_s = what.until_s - time.time()
        because = f"the job's time ends in {duration(left_s)}" if left_s > 0 else "the job's time has ended"
        return made(what.at_s, what="deadline", until_s=what.until_s, because=because)
    if isinstance(what, Alarm):
        return made(what.at_s, what="alarm", watch=what.watch, happened=what.change, because=what.because)
    raise TypeError(f"{type(what).__name__} is no event")


def workers_of(
    agent: Agent, progress: Mapping[int, Progress], files: ProcessFiles, *, measured: bool = False
) -> Workers:
    """This node's workers. `progress`: by rank, of those whose script uses the worker library, where it is known;
    `measured`: a worker of this job has used it."""
    workers, now = agent.workers, time.monotonic()
    member = workers.member
    if member is None:
        return Workers(agent.name)
    alive, written, logs = workers.alive, workers.written, workers.round_logs
    usage = files.read(alive.values())
    started, accounts = workers.started_s, dict(enumerate(workers.steps.shown()))
    made = []
    for local_rank, pid in sorted(workers.pids.items()):
        rank = member.rank_offset + local_rank
        rss, cpu_s, state = usage.get(pid, GONE) if local_rank in alive else GONE
        shown, account = progress.get(rank), accounts.get(local_rank)
        made.append(
            Worker(
                rank=rank,
                local_rank=local_rank,
                pid=pid,
                state=state,
                age_s=round(now - started.get(local_rank, now), 3),
                written_bytes=written.get(local_rank, 0),
                rss_bytes=rss,
                cpu_s=cpu_s,
                section=shown.section if shown else "",
                # Of the run, over restarts; what is watched counts those of this process.
                steps=account.steps if account and account.began_s else shown.steps if shown else 0,
                mark_age_s=round(now - shown.at_s, 3) if shown else None,
                stdout_file=logs.stdout_files.get(local_rank, "") if logs else "",
                stderr_file=logs.stderr_files.get(local_rank, "") if logs else "",
                importing=measured and local_rank in alive and not (account and account.began_s),
            )
        )
    return Workers(agent.name, agent.status().round, tuple(made))
