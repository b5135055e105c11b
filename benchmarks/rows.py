"""The table: what is compared, the number of samples, and the goals.

Launcher a is the reference (torchrun), b the candidate. Where a never gets so far, each of its samples takes the whole
limit, so it gets few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from . import logs, measures, stores
from .goals import Every, Goal, Ratio, Typical, Within
from .run import Run

LEASE_S = 5.0
"""elastic-agent's default: a node without a heartbeat for this long is lost."""
NOTICE_S = 2.0
"""How long detecting a departure and starting the other nodes' workers may take, after the lease."""

STORE_MEMORY_MIB = 45.0
"""Memory that a node on etcd may have; most of it is gRPC."""

SCALE_UP_LIMIT_S = 20.0
"""torchrun takes 3 to 5 s when it succeeds."""
NODE_LOSS_LIMIT_S = 30.0
"""torchrun removes a dead node after 15 s, and re-forms 16 to 21 s after its loss when it succeeds."""
DEPARTURE_LIMIT_S = 30.0
"""torchrun was once watched for 60 s; it does not detect the departure."""
GLOO_LIMIT_S = 15.0
"""The workers alone take 1 s to import torch and reduce, up to 4 s on a busy host."""
LEAK_RESTARTS = 1000
"""As many as the launchers are allowed (`measures.one_machine`)."""

MEMORY_KINDS = ("Rss", "Pss")
"""Lines of /proc/PID/smaps_rollup: all that a process has in memory, and the same with shared pages divided among those
that share them."""

STYLES = {"print": ("line by line", 0.9), "block": ("in blocks", 0.7)}
"""How workers write their lines, and the goal for their speed, as a share of their speed under torchrun."""
LOG_WORKERS = (1, 2, 4)
RELAY_MIB = 64.0
"""Peak memory that the process that passes lines on may have."""


JUDGED_NODES = 1000
JUDGING_S = 2.0
"""Processor time that the coordinator may need to judge the failure of all workers: its loop takes signals, too."""
MIXES = {"own": "each by an error of its own", "echoes": "all but one as echoes"}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    what: str
    unit: str
    measure: Callable[[Run], Iterator[float]]
    goal: Goal | None
    """None: for information."""
    samples: tuple[int, int]
    """How many of a and of b."""
    quick: tuple[int, int]
    """The same with --quick."""


TABLE = (
    Row(
        name="launch",
        what="launch to first line of a plain worker, one machine",
        unit="s",
        measure=measures.launch,
        goal=Ratio(0.25),
        samples=(15, 15),
        quick=(3, 5),
    ),
    Row(
        name="restart",
        what="worker failure to first line of the restarted workers, one machine",
        unit="s",
        measure=measures.restart,
        goal=Ratio(0.5),
        samples=(40, 40),
        quick=(10, 10),
    ),
    Row(
        name="preload-launch",
        what="launch to first all_reduce of 2 gloo workers, torch preloaded by b",
        unit="s",
        measure=measures.preloaded_launch,
        goal=Ratio(0.6),
        samples=(10, 10),
        quick=(2, 3),
    ),
    Row(
        name="preload-restart",
        what="SIGKILL of a worker to first all_reduce of the next 2, torch preloaded by b",
        unit="s",
        measure=partial(measures.preloaded_restart, limit_s=GLOO_LIMIT_S),
        goal=Typical(0.35, 1 / 6),
        samples=(40, 40),
        quick=(5, 10),
    ),
    Row(
        name="restart-2-nodes",
        what="the same across 2 nodes",
        unit="s",
        measure=measures.restart_two_nodes,
        goal=Ratio(0.15),
        samples=(10, 20),
        quick=(2, 6),
    ),
    Row(
        name="restart-1-of-2",
        what="restart with 1 of 1:2 nodes present",
        unit="s",
        measure=measures.restart_one_of_two,
        goal=Ratio(0.05),
        samples=(2, 10),
        quick=(1, 3),
    ),
    *(
        Row(
            name=f"memory-{kind.lower()}",
            what=f"launcher's memory, one machine, {kind.upper()}",
            unit="MiB",
            measure=partial(measures.memory, key=kind),
            goal=Ratio(0.2),
            samples=(3, 5),
            quick=(1, 2),
        )
        for kind in MEMORY_KINDS
    ),
    Row(
        name="gloo-restarts",
        what="worker restarts with gloo that work at the first try",
        unit="s",
        measure=partial(measures.gloo_restarts, limit_s=GLOO_LIMIT_S),
        goal=Every(),
        samples=(12, 100),
        quick=(2, 6),
    ),
    Row(
        name="scale-up",
        what="1 node becomes 2: job continues",
        unit="s",
        measure=partial(measures.scale_up, limit_s=SCALE_UP_LIMIT_S),
        goal=Every(),
        samples=(2, 20),
        quick=(0, 2),
    ),
    Row(
        name="replacement",
        what="dead node is replaced: job continues",
        unit="s",
        measure=partial(measures.replacement, limit_s=NODE_LOSS_LIMIT_S),
        goal=Every(),
        samples=(2, 20),
        quick=(0, 2),
    ),
    Row(
        name="rank0-lost",
        what="rank 0's node of 3 is lost (not the store's host): job continues",
        unit="s",
        measure=partial(measures.rank0_lost, limit_s=NODE_LOSS_LIMIT_S),
        goal=Every(),
        samples=(2, 20),
        quick=(0, 1),
    ),
    Row(
        name="departure",
        what="lost node is noticed and the survivors' workers run again",
        unit="s",
        measure=partial(measures.departure, limit_s=DEPARTURE_LIMIT_S),
        goal=Within(LEASE_S + NOTICE_S),
        samples=(2, 6),
        quick=(0, 1),
    ),
    *(
        Row(
            name=f"tee-{style}-{nproc}",
            what=f"{nproc} workers tee a million lines, {how}: their own time",
            unit="s",
            measure=partial(logs.writing, nproc=nproc, style=style),
            goal=Ratio(round(1 / least, 2)),
            samples=(7, 7),
            quick=(3, 3),
        )
        for style, (how, least) in STYLES.items()
        for nproc in LOG_WORKERS
    ),
    *(
        Row(
            name=f"tee-damage-{style}-{nproc}",
            what=f"the same: lines torn, late, doubled or lost, {nproc} workers {how}",
            unit="lines",
            measure=partial(logs.damage, nproc=nproc, style=style),
            goal=Within(0.0),
            samples=(3, 3),
            quick=(1, 1),
        )
        for style, (how, _) in STYLES.items()
        for nproc in LOG_WORKERS
    ),
    Row(
        name="tee-memory",
        what="the same: the most that a process of the launcher held, 4 workers in blocks",
        unit="MiB",
        measure=partial(logs.memory, nproc=4, style="block"),
        goal=Within(RELAY_MIB),
        samples=(1, 3),
        quick=(1, 1),
    ),
)

EXTRA = (
    Row(
        name="preload-memory",
        what="memory of the launcher, torch preloaded by b for 2 workers, PSS",
        unit="MiB",
        measure=partial(measures.preloaded_memory, workers_too=False),
        goal=None,
        samples=(3, 3),
        quick=(1, 1),
    ),
    Row(
        name="preload-memory-all",
        what="the same, and the 2 workers",
        unit="MiB",
        measure=partial(measures.preloaded_memory, workers_too=True),
        goal=None,
        samples=(3, 3),
        quick=(1, 1),
    ),
    *(
        Row(
            name=f"worker-store-{kind.lower()}",
            what=f"memory of the process that serves the workers' store, once 2 gloo workers opened it, {kind.upper()}",
            unit="MiB",
            measure=partial(measures.memory_worker_store, key=kind),
            goal=None,
            samples=(0, 5),
            quick=(0, 1),
        )
        for kind in MEMORY_KINDS
    ),
    Row(
        name="preload-leaks",
        what="descriptors that 1000 restarts leave open, torch preloaded by b",
        unit="",
        measure=partial(measures.preloaded_leaks, restarts=LEAK_RESTARTS),
        goal=Within(0),
        samples=(0, 1),
        quick=(0, 1),
    ),
    Row(
        name="exit",
        what="last worker gone to launcher gone, one machine",
        unit="s",
        measure=measures.exit_delay,
        goal=None,
        samples=(10, 10),
        quick=(3, 3),
    ),
    Row(
        name="memory-store-host",
        what="memory of the launcher that hosts the store of 2 nodes, RSS",
        unit="MiB",
        measure=measures.memory_store_host,
        goal=None,
        samples=(3, 5),
        quick=(1, 2),
    ),
    Row(
        name="idle-cpu",
        what="CPU of a launcher that watches 2 sleeping workers",
        unit="%",
        measure=measures.idle_cpu,
        goal=None,
        samples=(3, 3),
        quick=(1, 1),
    ),
    *(
        Row(
            name=f"tee-job-{style}-{nproc}",
            what=f"{nproc} workers tee a million lines, {how}: until the launcher is gone",
            unit="s",
            measure=partial(logs.job, nproc=nproc, style=style),
            goal=Ratio(round(1 / least, 2)),
            samples=(7, 7),
            quick=(3, 3),
        )
        for style, (how, least) in STYLES.items()
        for nproc in LOG_WORKERS
    ),
    *(
        Row(
            name=f"judging-{mix}",
            what=f"all 8,000 workers of {JUDGED_NODES:,} nodes fail at once, {how}: time of the coordinator in all",
            unit="s",
            measure=partial(measures.judging, nodes=JUDGED_NODES, nproc=8, mix=mix),
            goal=Within(JUDGING_S),
            samples=(0, 3),
            quick=(0, 1),
        )
        for mix, how in MIXES.items()
    ),
    Row(
        name="store-launch",
        what="launch to first line of a plain worker, one node on a store",
        unit="s",
        measure=stores.launch,
        goal=Ratio(0.35),
        samples=(10, 10),
        quick=(3, 5),
    ),
    Row(
        name="store-join-64",
        what="64 nodes on one machine, launched at once, to the last one's first line",
        unit="s",
        measure=partial(stores.join, nodes=64),
        goal=None,
        samples=(2, 2),
        quick=(1, 1),
    ),
    Row(
        name="store-reform",
        what="one of 3 nodes is lost: the survivors' workers run again",
        unit="s",
        measure=partial(stores.reform, limit_s=DEPARTURE_LIMIT_S),
        goal=Within(LEASE_S + NOTICE_S),
        samples=(5, 5),
        quick=(2, 2),
    ),
    *(
        Row(
            name=f"store-memory-{kind.lower()}",
            what=f"memory of a node that does not host the store, with its helpers, {kind.upper()}",
            unit="MiB",
            measure=partial(stores.memory, key=kind),
            goal=Within(STORE_MEMORY_MIB) if kind == "Pss" else None,
            samples=(3, 3),
            quick=(1, 1),
        )
        for kind in MEMORY_KINDS
    ),
    Row(
        name="store-requests",
        what="requests to etcd in a steady round of 4 nodes, per second and node, besides lease renewals",
        unit="",
        measure=partial(stores.requests, nodes=4),
        goal=Within(1.0),
        samples=(0, 3),
        quick=(0, 1),
    ),
)
"""Measured only when named."""


def named(names: list[str]) -> list[Row]:
    """The rows with these names, in the table's order; without names, the table. Raises ValueError for unknown ones."""
    if not names:
        return list(TABLE)
    rows = {row.name: row for row in (*TABLE, *EXTRA)}
    if unknown := [name for name in names if name not in rows]:
        raise ValueError(f"no row is named {', '.join(unknown)}; there are {', '.join(rows)}")
    return [row for row in rows.values() if row.name in names]
