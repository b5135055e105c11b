"""What an agent knows, as messages. Reads snapshots: from any thread, and nothing waits."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping

from ...agent.agent import Agent
from ...agent.lifecycle.state import Node as OwnNode
from ...agent.lifecycle.state import Verdict
from ...agent.report import AgentEvent
from ...proto.progress import Progress
from ...rendezvous import failures
from ...rendezvous.coordinator.state import Rendezvous, Seen
from ...rendezvous.records import Member, Round, RoundPhase
from .messages import Agreement, Ending, Event, Job, Node, Worker, Workers

PAGE_BYTES, TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
STATES = {"T": "stopped", "t": "stopped", "Z": "zombie", "X": "exited"}
"""States of a process, by their letter in /proc, that are not `running`."""


def job_of(agent: Agent, run_id: str, began_s: float, last_event: int) -> Job:
    """The whole job as this agent knows it."""
    now, known = time.monotonic(), agent.known()
    seen, state = known.node.latest_round, known.coordinator
    leading = state.leading and known.node.leading
    spec = known.rendezvous
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
        world_size=seen.world_size if seen and seen.placed else 0,
        restarts=seen.restarts if seen else 0,
        nodes=_coordinated(state, known.identity, now) if leading else _announced(seen, known.node, known.identity),
        ended=ending_of(seen.ended if seen else None, seen.members if seen else ()),
        agreement=_agreement(seen),
        outcome=seen.outcome.value if seen and seen.outcome else "",
        finishing=bool(seen and seen.finishing),
        store="" if spec.backend == "memory" else f"{spec.backend} {spec.endpoint}",
        store_trouble=known.node.outage.why,
        lease_s=spec.lease_s if spec.backend != "memory" else 0.0,
        age_s=now - began_s,
        last_event=last_event,
        command=" ".join(spec.command),
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
    )


def _announced(seen: Round | None, node: OwnNode, own: str) -> tuple[Node, ...]:
    """Members of the round, of which this node knows only its own state at first hand."""
    return tuple(
        Node(
            name=member.name,
            state=node.phase.value if member.node == own else "unknown",
            group_rank=member.group_rank,
            rank_offset=member.rank_offset,
            nproc=member.nproc,
            heard_age_s=0.0 if member.node == own else None,
            own=member.node == own,
            because=node.because if member.node == own else "",
            round=seen.number if seen else 0,
        )
        for member in (seen.placed if seen else ())
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


def event_of(entry: tuple[int, float, float, object], node: str, missed: int = 0) -> Event:
    """One entry of the history."""
    number, time_s, at_s, what = entry
    if isinstance(what, AgentEvent):
        return Event(
            number, time_s, what.at_s, node, "event",
            happened=what.happened, phase=what.phase.value, round=what.round, because=what.because,
            restarts_used=what.restarts_used, failure=str(what.failure) if what.failure else "",
            members=what.members, missed=missed,
        )  # fmt: skip
    if isinstance(what, Round):
        return Event(
            number, time_s, at_s, node, "announced",
            happened="announced", phase=what.phase.value, round=what.number, because=what.because,
            members=what.placed, version=what.version, restarts=what.restarts,
            ended=ending_of(what.ended, what.members), outcome=what.outcome.value if what.outcome else "",
            missed=missed,
        )  # fmt: skip
    if isinstance(what, Verdict):
        return Event(
            number, time_s, at_s, node, "concluded",
            happened="concluded", phase="ended", because=what.because,
            failure=str(what.cause) if what.cause else "", exit_code=what.exit_code,
            outcome=what.outcome.value if what.outcome else "", missed=missed,
        )  # fmt: skip
    raise TypeError(f"{type(what).__name__} is no event")


def workers_of(agent: Agent, progress: Mapping[int, Progress]) -> Workers:
    """This node's workers. `progress`: by rank, of those whose script uses the worker library, where it is known."""
    workers, now = agent.workers, time.monotonic()
    member = workers.member
    if member is None:
        return Workers(agent.name)
    alive, written, logs = workers.alive, workers.written, workers.round_logs
    started = workers.started_s
    made = []
    for local_rank, pid in sorted(workers.pids.items()):
        rank = member.rank_offset + local_rank
        rss, cpu_s, state = process(pid) if local_rank in alive else (0, 0.0, "exited")
        shown = progress.get(rank)
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
                steps=shown.steps if shown else 0,
                mark_age_s=round(now - shown.at_s, 3) if shown else None,
                stdout_file=logs.stdout_files.get(local_rank, "") if logs else "",
                stderr_file=logs.stderr_files.get(local_rank, "") if logs else "",
            )
        )
    return Workers(agent.name, agent.status().round, tuple(made))


def process(pid: int) -> tuple[int, float, str]:
    """Resident bytes, processor time in seconds, and the state of a process; nothing, and `exited`, if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0, 0.0, "exited"
    if len(fields) < 22:
        return 0, 0.0, "exited"
    cpu_s = (int(fields[11]) + int(fields[12])) / TICKS
    return int(fields[21]) * PAGE_BYTES, cpu_s, STATES.get(fields[0].decode(), "running")
