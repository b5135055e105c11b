"""Which job fails in which way: a kind of failure and a seed make a `Case`. Starts nothing."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path

import elastic_agent

HERE = Path(__file__).resolve().parent
SKEW_S = 5.0
"""How far a node's wall clock is off at most, either way."""

PLAIN = (
    "exception", "exit 3", "exit 0", "killed", "terminated", "segfault", "stopped", "hang", "slow death",
    "failing clean-up", "import", "lost its storage", "wrapped by the peers", "swallowed by the peers",
    "masked by the peers", "peers abort",
)  # fmt: skip
"""A worker's fault, or how its peers fail because of it. Workers are plain Python."""
DEPARTED = {"node lost": "(lost)", "node told to stop": "(ended)"}
"""A node's departure, and how the verdict words it; no worker is at fault."""
GLOO = ("gloo killed", "gloo exception", "gloo exit 0", "gloo hang", "gloo barrier")
"""Workers use a process group of torch."""
KINDS = (*PLAIN, *DEPARTED, *GLOO)

SHAPES = ((2, 2), (1, 2, 1), (1, 3))
"""Workers of each node."""
GLOO_SHAPES = ((1, 1), (1, 2), (1, 1, 1))
"""Fewer, as each of them imports torch."""


@dataclass(frozen=True)
class Case:
    """One job that fails."""

    kind: str
    seed: int
    shape: tuple[int, ...]
    """Workers of each node, by group rank."""
    skews_s: tuple[float, ...]
    """How far each node's wall clock is ahead, its agent's and its workers'."""
    host: int
    """The node that hosts the store."""
    bad: int
    """The rank at fault; -1 where none is."""
    leaver: int
    """The node that departs; -1 where none does."""
    step: int
    """The training step of the fault."""
    slow_s: float
    """How long a slow death takes."""
    recorded: bool
    """Whether gloo workers run under torch's `@record`, and so write error files."""

    @staticmethod
    def draw(kind: str, seed: int) -> Case:
        rng = random.Random(f"{kind}/{seed}")
        shape = rng.choice(GLOO_SHAPES if kind in GLOO else SHAPES)
        nodes = range(len(shape))
        host = rng.choice(nodes)
        return Case(
            kind=kind,
            seed=seed,
            shape=shape,
            skews_s=tuple(rng.uniform(-SKEW_S, SKEW_S) for _ in nodes),
            host=host,
            # A monitored barrier waits 30 minutes for rank 0, so a job whose rank 0 hangs does not fail in time.
            bad=-1 if kind in DEPARTED else rng.randrange(kind == "gloo barrier", sum(shape)),
            leaver=rng.choice([node for node in nodes if node != host]) if kind in DEPARTED else -1,
            step=rng.randrange(4, 12),
            slow_s=rng.uniform(0.05, 2.0),
            recorded=rng.random() < 0.5,
        )

    @property
    def home(self) -> int:
        """Group rank of the node whose worker is at fault."""
        return next(node for node in range(len(self.shape)) if self.bad < sum(self.shape[: node + 1]))

    @property
    def starts(self) -> list[int]:
        """Nodes in the order of their start: the host first."""
        return sorted(range(len(self.shape)), key=lambda node: node != self.host)

    @property
    def worker(self) -> str:
        """The script."""
        return str(HERE / ("gloo_worker.py" if self.kind in GLOO else "worker.py"))

    def environment(self, mesh: Path, node: int) -> dict[str, str]:
        """The environment of this node's agent and workers. They run the same elastic_agent as this process."""
        places = [HERE / "skew", HERE.parents[1], Path(elastic_agent.__file__).absolute().parent.parent]
        return {
            "TEST_KIND": self.kind.removeprefix("gloo "),
            "TEST_BAD": str(self.bad),
            "TEST_STEP": str(self.step),
            "TEST_SLOW_S": str(self.slow_s),
            "TEST_RECORDED": str(int(self.recorded)),
            "TEST_MESH": str(mesh),
            "TEST_SKEW_S": str(self.skews_s[node]),
            "PYTHONPATH": os.pathsep.join([*map(str, places), os.environ.get("PYTHONPATH", "")]),
        }


@dataclass(frozen=True)
class Answer:
    """The cause that was named, and how good it is."""

    right: bool
    certain: bool
    text: str
    charged: bool = False
    """Whether the node of the worker at fault is charged, or no node where no worker is at fault."""
