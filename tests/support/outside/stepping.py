"""A job of `workers/stepping.py` on two nodes: small steps, in each of which the ranks wait for each other."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping
from pathlib import Path

from support.harness import Cluster
from support.procfs import read, slowed

SCRIPT = Path(__file__).parents[1] / "workers" / "stepping.py"
STEP_S = 0.02
BOUND_S = 90.0
"""On anything that takes an import of torch, on a busy host."""
LOOK_S = 0.5
"""At most between a file and the agent's request: the agent looks four times a second, twice at a save switch."""


class Training:
    """A job of `stepping.py`, one worker on each of two nodes."""

    def __init__(
        self, folder: Path, steps: int = 100_000, env: Mapping[str, str] | None = None, script: Path = SCRIPT
    ) -> None:
        """`env`: added to the agents'. `script`: one that runs `stepping.py`."""
        self.folder, self.checkpoints, self.notes = folder, folder / "checkpoints", folder / "notes"
        args = (str(self.checkpoints), str(self.notes), str(steps), str(STEP_S))
        self.cluster = Cluster(
            "c10d", folder, nnodes="2", worker=str(script), args=args, max_restarts=0, env=dict(env or {})
        )

    def start(self, **flags: tuple[str, ...]) -> Training:
        """Agents `a` and `b` with these flags."""
        for name in ("a", "b"):
            self.cluster.start(name, flags=flags.get(name, ()))
        return self

    def lines(self, rank: int) -> list[str]:
        try:
            return Path(f"{self.notes}.{rank}").read_text().splitlines()
        except FileNotFoundError:
            return []

    def wait_steps(self, least: int) -> None:
        """Until both ranks have done so many steps."""
        deadline = time.monotonic() + BOUND_S
        while min(len(self.lines(0)), len(self.lines(1))) < least:
            assert time.monotonic() < deadline, f"no step {least}: {self.cluster.nodes['a'].text()}"
            assert self.cluster.nodes["a"].process.poll() is None, self.cluster.nodes["a"].text()
            time.sleep(0.02)

    def last_steps(self) -> set[str]:
        """Of both ranks: the steps after which they ended."""
        return {self.lines(rank)[-1] for rank in (0, 1)}

    def labels(self) -> dict[str, str]:
        """By name of the checkpoint, those that are labelled."""
        found = {path.parent.name: read(str(path)) for path in self.checkpoints.glob("step-*/manifest.json")}
        manifests = {name: json.loads(text) for name, text in found.items() if text}  # empty: removed meanwhile
        return {name: manifest["label"] for name, manifest in manifests.items() if manifest.get("label")}

    def wait_label(self) -> dict[str, str]:
        deadline = time.monotonic() + BOUND_S
        while not (labels := self.labels()):
            assert time.monotonic() < deadline, self.cluster.nodes["a"].text()
            time.sleep(0.02)
        return labels

    def assert_stopped_within_two_steps(self, asked_s: float) -> None:
        """The last step came in time."""
        self.assert_acted_within_two_steps(asked_s, int(self.lines(0)[-1].removeprefix("end ")))

    def assert_acted_within_two_steps(self, asked_s: float, step: int, look_s: float = LOOK_S) -> None:
        """This step came within a look and two steps of the request; a busy host gets as long again. How long a step
        takes is that of the longest before the request: what the request itself halts does not count."""
        for rank in (0, 1):
            times = [float(line.split()[1]) for line in self.lines(rank) if not line.startswith("end")]
            before = [each for each in times if each < asked_s]
            each_s = max(later - earlier for earlier, later in itertools.pairwise(before))
            took_s = times[step - 1] - asked_s
            assert took_s <= 2 * (slowed(look_s) + 2 * each_s), f"rank {rank}, step {step}: {took_s} s later"

    @staticmethod
    def step_of(labels: Mapping[str, str]) -> int:
        """That of the one checkpoint that is labelled."""
        [name] = labels
        return int(name.removeprefix("step-"))
