"""Agents inside the test's own process, and programs that launch."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from elastic_agent import (
    AgentEvent,
    LaunchConfig,
    NodeAgent,
    Phase,
    WorkersFailed,
    launch,
)
from support.desk import Desk
from support.harness import ThreadNode

ONE = LaunchConfig(max_restarts=0)
TWO = LaunchConfig(nproc_per_node=2, max_restarts=0)
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Embedded:
    """Agents on threads of this process; each is stopped at the end of the test."""

    def __init__(self) -> None:
        self.nodes: list[ThreadNode] = []

    def start(self, config: LaunchConfig, entrypoint: Any, *args: object, name: str = "one", **more: Any) -> ThreadNode:
        node = ThreadNode(name, None)
        node.agent = NodeAgent(config, entrypoint, *args, name=name, tell=node.tell, **more)
        self.nodes.append(node)
        node.start()
        return node


def at_desk(desk: Desk, **fields: Any) -> LaunchConfig:
    """A configuration whose workers report to the desk."""
    known = {"max_restarts": 0, "env": {"TEST_NODE": "one", "TEST_DESK": desk.path}}
    return LaunchConfig(**{**known, **fields})


class Watcher:
    """Keeps events as they come."""

    def __init__(self) -> None:
        self.events: list[AgentEvent] = []
        self.threads: set[str] = set()

    def __call__(self, event: AgentEvent) -> None:
        self.events.append(event)
        self.threads.add(threading.current_thread().name)

    @property
    def phases(self) -> list[Phase]:
        """Without repeats."""
        phases = [event.phase for event in self.events]
        return [phase for at, phase in enumerate(phases) if at == 0 or phases[at - 1] is not phase]


def failure_of(config: LaunchConfig, entrypoint: Any, *args: object) -> WorkersFailed:
    with pytest.raises(WorkersFailed) as caught:
        launch(config, entrypoint, *args)
    return caught.value


def run_program(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run a user's program from a file."""
    program = folder / "program.py"
    program.write_text("from elastic_agent import *\nimport os\n" + text)
    return subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=False)
