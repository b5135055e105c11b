"""Jobs whose workers are forked with modules imported, below a real nursery."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from elastic_agent.agent.lifecycle.events import WorkersGone
from elastic_agent.agent.processes.environment import PER_WORKER
from elastic_agent.agent.processes.protocol import (
    Exited,
    Fact,
    Launch,
    PreloadFailed,
)
from elastic_agent.agent.processes.supervisor import Supervisor
from support.procfs import read

BOUND_S = 110.0
"""The limit for what must happen; only a failing test waits so long. Importing torch takes half a minute at load 16."""
CHEAP = ("json", "random", "multiprocessing", "logging")
"""Modules that are quick to import, for tests in which it does not matter which are preloaded."""


@dataclass
class Job:
    """A supervisor, and the command that its workers run."""

    folder: Path
    arguments: tuple[str, ...]
    preload: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    supervisor: Supervisor = field(default_factory=Supervisor)
    facts: list[Fact] = field(default_factory=list)
    """All facts that were observed."""

    def __post_init__(self) -> None:
        self.supervisor.open()
        base = {name: value for name, value in os.environ.items() if name not in PER_WORKER}
        self.env = {**base, "OMP_NUM_THREADS": "1", **self.env}
        if self.preload:
            self.supervisor.preload(self.preload, PER_WORKER, self.launch(0, {}))

    def launch(self, key: int, env: dict[str, str], out: int | None = None, err: int | None = None) -> Launch:
        argv = (sys.executable, "-u", *self.arguments)
        return Launch(key, argv, {**self.env, **env}, str(self.folder), out, err, bool(self.preload))

    def start(self, count: int = 1, **env: str) -> None:
        """Start workers whose output goes to files."""
        launches = []
        for key in range(count):
            fds = [
                os.open(self.folder / f"{name}{key}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for name in ("out", "err")
            ]
            launches.append(self.launch(key, {"RANK": str(key), **env}, *fds))
        self.supervisor.start(launches)
        for launch in launches:
            os.close(launch.stdout_fd or 0)
            os.close(launch.stderr_fd or 0)

    def until(self, last: type[Fact], count: int = 1) -> list[Fact]:
        """Everything observed until `count` facts of this type were."""
        seen: list[Fact] = []
        poll = select.poll()
        poll.register(self.supervisor.fileno(), select.POLLIN)
        while sum(isinstance(fact, last) for fact in seen) < count:
            assert poll.poll(BOUND_S * 1000), f"no {last.__name__} within {BOUND_S} s after {seen}"
            seen += self.supervisor.observe()
        self.facts += seen
        return seen

    def run(self, count: int = 1, **env: str) -> list[int]:
        """Start workers and wait until nothing of them is left; return their exit codes, by local rank."""
        self.start(count, **env)
        exits = {fact.key: fact.exit_code for fact in self.until(WorkersGone) if isinstance(fact, Exited)}
        return [exits[key] for key in sorted(exits)]

    def output(self, key: int = 0) -> tuple[str, str]:
        """What a worker wrote to stdout and stderr."""
        return (self.folder / f"out{key}").read_text(), (self.folder / f"err{key}").read_text()

    def forked(self) -> bool:
        """Whether no PreloadFailed was reported, so that all workers were forked."""
        return not any(isinstance(fact, PreloadFailed) for fact in self.facts)

    def reasons(self) -> list[str]:
        """Why workers were started plainly, as reported."""
        return [fact.reason for fact in self.facts if isinstance(fact, PreloadFailed)]


def make(jobs: list[Job], folder: Path, arguments: Sequence[str], preload: Sequence[str] = (), **env: str) -> Job:
    job = Job(folder, tuple(arguments), tuple(preload), env)
    jobs.append(job)
    return job


def zygote_of(job: Job) -> int:
    """The pid of the paused interpreter."""
    for pid in children(job.supervisor._nursery):
        if read(f"/proc/{pid}/comm") == b"elastic-zygote\n":
            return pid
    raise AssertionError("there is no zygote")


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
