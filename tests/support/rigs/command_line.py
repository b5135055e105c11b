"""The command line as a process of which a test reads the end, and an agent alone on its node.

There is no traceback of ours, no hang, and no process is left, which the leak check of every test makes sure of.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from support.desk import WORKER, Desk
from support.harness import ProcessNode
from support.procfs import slowed

SOON_S = 10.0
"""Within this time every mistake is reported."""
CONNECT_S = 1.0
"""read_timeout of the tests in which no store comes."""
HINT = " (see elastic-agent --help)"
AGENT = (sys.executable, "-m", "elastic_agent")


@dataclass(frozen=True)
class Done:
    """How a command line ended."""

    code: int
    out: str
    err: str
    took_s: float

    @property
    def last(self) -> str:
        return self.err.splitlines()[-1]


def elastic_agent(
    *args: str, cwd: Path, env: Mapping[str, str] | None = None, code: str = "", limit_s: float = 30.0
) -> Done:
    """Run the command line to its end; `code` runs in its process first."""
    command = (
        [sys.executable, "-c", f"{code}\nfrom elastic_agent.launcher.cli import entry; entry()"] if code else AGENT
    )
    began = time.monotonic()
    done = subprocess.run(
        [*command, *args],
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        cwd=cwd,
        capture_output=True,
        check=False,
        text=True,
        timeout=limit_s,
    )
    return Done(done.returncode, done.stdout, done.stderr, time.monotonic() - began)


def assert_one_line(done: Done, status: int, *parts: str, within_s: float = SOON_S) -> None:
    """Refused in time, with one line that has all of `parts`; a line that it is waiting may come before."""
    lines = [line for line in done.err.splitlines() if "] waiting for " not in line]
    assert (done.code, len(lines)) == (status, 1), done.err
    assert lines[0].startswith(f"elastic-agent: exit {status}: ")
    assert [part for part in parts if part not in lines[0]] == [], lines[0]
    assert lines[0].endswith(HINT) is (status == 2)
    assert done.took_s < slowed(within_s)
    assert done.out == ""


class OneNode:
    """One node with one agent, whose workers report to a desk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.desk = Desk(folder)
        self._nodes: list[ProcessNode] = []

    def start(self, *flags: str, cwd: Path | None = None, **env: str) -> ProcessNode:
        known = {**os.environ, "TEST_NODE": "one", "TEST_DESK": self.desk.path, "OMP_NUM_THREADS": "1"}
        node = ProcessNode("one", ["--standalone", *flags, WORKER], {**known, **env}, cwd or self.folder)
        self._nodes.append(node)
        return node

    def close(self) -> None:
        for node in self._nodes:
            node.end()
        self.desk.close()


def at(port: int, host: str = "127.0.0.1", **conf: object) -> list[str]:
    settings = ",".join(f"{key}={value}" for key, value in {"read_timeout": CONNECT_S, **conf}.items())
    return ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{host}:{port}", "--rdzv-conf", settings]
