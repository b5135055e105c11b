"""What an agent counts for Prometheus, and the text 0.0.4 of it. Loaded with `--metrics-address` only.

No label has values that grow with time: no process ids, rounds, messages.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ...agent.agent import Agent
from ...agent.lifecycle.state import Phase, Verdict
from ...agent.report import AgentEvent
from ...agent.steps.seen import WorkersSeen
from ...proto.progress import Progress
from ...rendezvous.driver.threads import LATENCY_BUCKETS, OwnHeartbeats
from ...rendezvous.failures import EndKind, Sign
from ...rendezvous.records import Round
from ..stream import DROPPED, Alarm, Checkpoint, Entry, Stage
from .describe import job_of, workers_of
from .messages import Goodput
from .process_files import ProcessFiles

PHASE_BUCKETS = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0)
"""Seconds: upper bounds of the histogram of phases."""
METRICS: dict[str, tuple[str, str]] = {
    "elastic_agent_info": ("gauge", "Always 1; the job's run id and this agent's version."),
    "elastic_agent_start_time_seconds": ("gauge", "When this agent began, in seconds since 1970."),
    "elastic_agent_phase": ("gauge", "1 for the phase that this node is in, 0 for the others."),
    "elastic_agent_phase_seconds": (
        "histogram",
        "Seconds that each phase of this node lasted, of those that are over.",
    ),
    "elastic_agent_round": ("gauge", "Number of the job's round, as last announced; 0 before the first."),
    "elastic_agent_rounds_started_total": ("counter", "Rounds for which this node has started workers."),
    "elastic_agent_rounds_ended_total": ("counter", "Rounds whose end this node has received, by what ended them."),
    "elastic_agent_job_restarts_total": ("counter", "Rounds of the job that a failure has ended."),
    "elastic_agent_restarts_used": ("gauge", "Restarts that this node was charged."),
    "elastic_agent_restarts_limit": ("gauge", "Restarts that this node may be charged (--max-restarts)."),
    "elastic_agent_worker_failures_total": ("counter", "Workers of this node that failed, by what their exit says."),
    "elastic_agent_worker_exits_total": (
        "counter",
        "Workers of this node that have exited, stopped ones among them: with code 0, another code, or by a signal.",
    ),
    "elastic_agent_nodes": ("gauge", "Nodes in the running round."),
    "elastic_agent_nodes_min": ("gauge", "Nodes without which no round begins."),
    "elastic_agent_nodes_max": ("gauge", "Nodes that a round has at most."),
    "elastic_agent_world_size": ("gauge", "Workers of all nodes in the running round."),
    "elastic_agent_coordinating": ("gauge", "1 if this node coordinates the job, 0 if not."),
    "elastic_agent_store_available": ("gauge", "1 if the store answers this node, 0 if not."),
    "elastic_agent_store_latency_seconds": (
        "histogram",
        "Seconds that the store took to answer this node's heartbeats.",
    ),
    "elastic_agent_lease_age_seconds": (
        "gauge",
        "Seconds since the store answered this node's last heartbeat, which renews its lease; absent without a store.",
    ),
    "elastic_agent_announcement_age_seconds": ("gauge", "Seconds since the newest announcement was received."),
    "elastic_agent_node_heard_age_seconds": (
        "gauge",
        "Seconds since a node's last sign, by group rank; of other nodes on the coordinator only.",
    ),
    "elastic_agent_lease_seconds": ("gauge", "Seconds without a sign after which a node is lost."),
    "elastic_agent_workers": ("gauge", "Workers of this node, by state."),
    "elastic_agent_worker_resident_bytes": ("gauge", "Resident memory of a worker."),
    "elastic_agent_worker_cpu_seconds_total": ("counter", "Processor time of a worker; begins anew with each round."),
    "elastic_agent_worker_output_bytes_total": (
        "counter",
        "Bytes that a worker has written; begins anew with each round.",
    ),
    "elastic_agent_worker_mark_age_seconds": (
        "gauge",
        "Seconds since a worker's last progress mark; absent if the agent does not watch progress.",
    ),
    "elastic_agent_worker_time_seconds": ("gauge", "Seconds of this node's workers, by what they were used for."),
    "elastic_agent_lost_time_seconds": ("gauge", "Seconds that ends of rounds have cost, by what ended the round."),
    "elastic_agent_goodput_ratio": (
        "gauge",
        "Share of useful steps in the workers' seconds; absent if not measured.",
    ),
    "elastic_agent_recovery_stage_seconds": ("histogram", "Seconds that each stage of a recovery or start took."),
    "elastic_agent_checkpoints_total": ("counter", "Checkpoints that this node's workers have taken."),
    "elastic_agent_checkpoint_step": ("gauge", "Step of the newest checkpoint."),
    "elastic_agent_checkpoint_age_seconds": ("gauge", "Seconds since the newest checkpoint."),
    "elastic_agent_checkpoint_bytes": (
        "gauge",
        "Size of the newest checkpoint that a worker of this node has brought to the disk.",
    ),
    "elastic_agent_checkpoint_held_seconds_total": ("counter", "Seconds that checkpoints have held workers up."),
    "elastic_agent_alarms_total": ("counter", "Number of times that a watch of this node has fired."),
    "elastic_agent_watch_firing": ("gauge", "1 for a watch of this node that has fired and is not cleared."),
    "elastic_agent_watch_blind": ("gauge", "1 for a watch of this node that cannot be read."),
    "elastic_agent_deadline_timestamp_seconds": (
        "gauge",
        "When the job's time ends, in seconds since 1970; absent if not known.",
    ),
    "elastic_agent_events_total": ("counter", "Events that this agent has recorded."),
    "elastic_agent_exit_code": ("gauge", "Exit status that this agent is about to end with; absent before."),
}
"""Name, and its type and meaning."""


FIRING = {"fired": True, "still": True, "cleared": False}
BLIND = {"blind": True, "sees again": False}
"""What each change of a watch says of it."""


class Counted:
    """What has to be counted as it happens."""

    def __init__(self) -> None:
        self.began_s = time.time()
        self.rounds_started = 0
        self.ended: Counter[str] = Counter({kind.value: 0 for kind in EndKind})
        self.failures: Counter[str] = Counter({sign.value: 0 for sign in Sign})
        self.exits: Counter[str] = Counter(zero=0, code=0, signal=0)
        self.phases: dict[str, list[int]] = {phase.value: [0] * (len(PHASE_BUCKETS) + 1) for phase in Phase}
        self.sums: dict[str, float] = dict.fromkeys(self.phases, 0.0)
        self.exit_code: int | None = None
        self.stages: dict[str, list[int]] = {}
        self.stage_sums: dict[str, float] = {}
        self.checkpoints, self.held_s, self.alarms = 0, 0.0, 0
        self.firing: dict[str, bool] = {}
        self.blind: dict[str, bool] = {}
        """By watch, of those that have fired or could not be read."""
        self.checkpoint: Checkpoint | None = None
        """The newest checkpoint."""
        self._phase, self._since_s = Phase.CONNECTING, time.monotonic()
        self._last_ended = 0
        self.checkpoint_bytes = 0
        self._exited: tuple[int, frozenset[int]] = 0, frozenset()
        """The newest round, and the local ranks of its workers whose exit is counted."""

    def happened(self, what: AgentEvent | Round | Verdict, agent: Agent | None) -> None:
        """Count an event of the agent, the end of a round, or the verdict."""
        if isinstance(what, Verdict):
            self.exit_code = what.exit_code
        elif isinstance(what, AgentEvent):
            self._event(what)
        seen = agent.known().node.latest_round if agent is not None else None
        if seen is not None and seen.ended is not None and seen.ended.round > self._last_ended:
            self._last_ended = seen.ended.round
            self.ended[seen.ended.kind.value] += 1

    def seen(self, workers: WorkersSeen) -> None:
        """Count workers that have exited, and that have failed; note the size of the newest checkpoint."""
        counted = self._exited[1] if self._exited[0] == workers.round else frozenset()
        self._exited = workers.round, frozenset(workers.exited)
        for code in (code for local_rank, (_, code) in workers.exited.items() if local_rank not in counted):
            self.exits["code" if code > 0 else "signal" if code else "zero"] += 1
        for sign in (sign for local_rank, sign in workers.failed if local_rank not in counted):
            self.failures[sign.value] += 1
        # A new round's workers have brought none to the disk yet: the newest is that of the round before.
        self.checkpoint_bytes = max((each.written_bytes for each in workers.shown), default=0) or self.checkpoint_bytes

    def recorded(self, entry: Entry) -> None:
        """Count what is no state of the node: stages, checkpoints, alarms."""
        what = entry.what
        if isinstance(what, Stage) and what.took_s:
            numbers = self.stages.setdefault(what.name, [0] * (len(PHASE_BUCKETS) + 1))
            numbers[_slot(what.took_s)] += 1
            self.stage_sums[what.name] = self.stage_sums.get(what.name, 0.0) + what.took_s
        elif isinstance(what, Checkpoint):
            self.checkpoint = what
            self.checkpoints += 1
            self.held_s += what.took_s
        elif isinstance(what, Alarm):
            self.alarms += what.change == "fired"
            if what.change == DROPPED:
                self.firing.pop(what.watch, None)
                self.blind.pop(what.watch, None)
            if what.change in FIRING:
                self.firing[what.watch] = FIRING[what.change]
            if what.change in BLIND:
                self.blind[what.watch] = BLIND[what.change]

    def _event(self, event: AgentEvent) -> None:
        if event.phase is self._phase:
            return
        took_s = max(0.0, event.at_s - self._since_s)
        name = self._phase.value
        self.phases[name][_slot(took_s)] += 1
        self.sums[name] += took_s
        self._phase, self._since_s = event.phase, event.at_s
        self.rounds_started += event.phase is Phase.WORKING


def _slot(took_s: float) -> int:
    """Which of PHASE_BUCKETS has it; their number where it is longer."""
    return next((at for at, bound in enumerate(PHASE_BUCKETS) if took_s <= bound), len(PHASE_BUCKETS))


Sample = tuple[str, Mapping[str, str], float]


def text_of(samples: Iterable[Sample]) -> bytes:
    """The samples, each family with its help and type, in the order of METRICS."""
    families: dict[str, list[str]] = {name: [] for name in METRICS}
    for name, labels, value in samples:
        family = name if name in METRICS else name.rpartition("_")[0]
        named = ",".join(f'{label}="{_escaped(each)}"' for label, each in labels.items())
        families[family].append(f"{name}{{{named}}} {value:.17g}" if named else f"{name} {value:.17g}")
    lines = []
    for name, found in families.items():
        if found:
            kind, meaning = METRICS[name]
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", *found]
    return ("\n".join(lines) + "\n").encode(errors="replace")  # a run id need not be UTF-8


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def samples_of(agent: Agent, counted: Counted, run_id: str, version: str, events: int) -> Iterator[Sample]:
    """All samples, as it stands now."""
    status, known = agent.status(), agent.known()
    job = job_of(agent, run_id, 0.0, events)
    yield "elastic_agent_info", {"run_id": run_id, "version": version}, 1
    yield "elastic_agent_start_time_seconds", {}, counted.began_s
    for phase in Phase:
        yield "elastic_agent_phase", {"phase": phase.value}, phase is status.phase
    yield from _histogram("elastic_agent_phase_seconds", "phase", counted.phases, counted.sums)
    yield from stage_samples(counted)
    yield "elastic_agent_round", {}, job.round
    yield "elastic_agent_rounds_started_total", {}, counted.rounds_started
    for kind, number in counted.ended.items():
        yield "elastic_agent_rounds_ended_total", {"kind": kind}, number
    yield "elastic_agent_job_restarts_total", {}, job.restarts
    yield "elastic_agent_restarts_used", {}, status.restarts_used
    yield "elastic_agent_restarts_limit", {}, status.max_restarts
    for sign, number in counted.failures.items():
        yield "elastic_agent_worker_failures_total", {"sign": sign}, number
    for how, number in counted.exits.items():
        yield "elastic_agent_worker_exits_total", {"how": how}, number
    seen = known.node.latest_round
    yield "elastic_agent_nodes", {}, seen.nodes if seen is not None and seen.begun else 0
    yield "elastic_agent_nodes_min", {}, job.min_nodes
    yield "elastic_agent_nodes_max", {}, job.max_nodes
    yield "elastic_agent_world_size", {}, status.world_size
    yield "elastic_agent_coordinating", {}, status.coordinating
    yield "elastic_agent_store_available", {}, known.node.outage.until is None and not known.node.outage.spoiled
    yield from _store_samples(agent.link.own_beats)
    if job.announced_age_s is not None:
        yield "elastic_agent_announcement_age_seconds", {}, job.announced_age_s
    for node in job.nodes:
        if node.group_rank is not None and node.heard_age_s is not None:
            yield "elastic_agent_node_heard_age_seconds", {"group_rank": str(node.group_rank)}, node.heard_age_s
    yield "elastic_agent_lease_seconds", {}, job.lease_s
    yield "elastic_agent_events_total", {}, events
    if counted.exit_code is not None:
        yield "elastic_agent_exit_code", {}, counted.exit_code


def stage_samples(counted: Counted) -> Iterator[Sample]:
    """How long each stage of a recovery or start took."""
    yield from _histogram("elastic_agent_recovery_stage_seconds", "stage", counted.stages, counted.stage_sums)


def _store_samples(beats: OwnHeartbeats | None) -> Iterator[Sample]:
    """How the store answers this node's heartbeats; nothing before the first answer."""
    if beats is not None and beats.latency_s is not None:
        yield from _one_histogram(
            "elastic_agent_store_latency_seconds", {}, LATENCY_BUCKETS, tuple(beats.latencies), beats.latencies_s
        )
        yield "elastic_agent_lease_age_seconds", {}, beats.age_s()


def _histogram(name: str, label: str, found: Mapping[str, list[int]], sums: Mapping[str, float]) -> Iterator[Sample]:
    for value, numbers in found.items():
        if sum(numbers):
            yield from _one_histogram(name, {label: value}, PHASE_BUCKETS, numbers, sums[value])


def _one_histogram(
    name: str, labels: Mapping[str, str], bounds: Sequence[float], numbers: Sequence[int], sum_s: float
) -> Iterator[Sample]:
    total = 0
    for bound, number in zip((*map(str, bounds), "+Inf"), numbers, strict=True):
        total += number
        yield f"{name}_bucket", {**labels, "le": bound}, total
    yield f"{name}_sum", labels, sum_s
    yield f"{name}_count", labels, total


def time_samples(counted: Counted, goodput: Goodput, deadline_s: float | None) -> Iterator[Sample]:
    """Where the workers' seconds went, checkpoints, alarms, the end of the job's time."""
    for spent in goodput.buckets:
        yield "elastic_agent_worker_time_seconds", {"bucket": spent.bucket}, spent.length_s
    lost: dict[str, float] = {}
    for each in goodput.lost:
        lost[each.kind] = lost.get(each.kind, 0.0) + each.length_s
    for kind, length_s in lost.items():
        yield "elastic_agent_lost_time_seconds", {"kind": kind}, length_s
    if goodput.measured:
        yield "elastic_agent_goodput_ratio", {}, goodput.share
    yield "elastic_agent_checkpoints_total", {}, counted.checkpoints
    yield "elastic_agent_checkpoint_held_seconds_total", {}, counted.held_s
    if counted.checkpoint is not None:
        yield "elastic_agent_checkpoint_step", {}, counted.checkpoint.step
        yield "elastic_agent_checkpoint_age_seconds", {}, time.monotonic() - counted.checkpoint.at_s
    if counted.checkpoint_bytes:
        yield "elastic_agent_checkpoint_bytes", {}, counted.checkpoint_bytes
    yield "elastic_agent_alarms_total", {}, counted.alarms
    for name, watches in (("firing", counted.firing), ("blind", counted.blind)):
        for watch, holds in watches.items():
            yield f"elastic_agent_watch_{name}", {"watch": watch}, holds
    if deadline_s is not None:
        yield "elastic_agent_deadline_timestamp_seconds", {}, deadline_s


def worker_samples(agent: Agent, progress: Mapping[int, Progress], files: ProcessFiles) -> Iterator[Sample]:
    """Of each worker of this node."""
    found = workers_of(agent, progress, files).workers
    for state, number in Counter(each.state for each in found).items():
        yield "elastic_agent_workers", {"state": state}, number
    for each in found:
        rank = {"rank": str(each.rank)}
        if each.state == "exited":
            continue
        yield "elastic_agent_worker_resident_bytes", rank, each.rss_bytes
        yield "elastic_agent_worker_cpu_seconds_total", rank, each.cpu_s
        yield "elastic_agent_worker_output_bytes_total", rank, each.written_bytes
        if each.mark_age_s is not None:
            yield "elastic_agent_worker_mark_age_seconds", rank, each.mark_age_s
