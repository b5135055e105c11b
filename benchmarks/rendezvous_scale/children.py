"""The processes of one measurement: started together, given orders, killed at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from .. import processes
from ..launchers import ROOT

Answer = dict[str, Any]
PACKAGE = __package__ or "benchmarks.rendezvous_scale"
LISTEN_CHECK_S, LISTEN_TRIES = 0.02, 1500


class Failed(RuntimeError):
    """A process of the measurement could not do what it was asked; one line."""


class Child:
    """One process that takes orders (`answering.py`)."""

    def __init__(self, module: str, args: Sequence[object]) -> None:
        self.name = module
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{PACKAGE}.{module}", *map(str, args)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_top(),
            env={**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"},
        )  # fmt: skip
        self.answer()

    def order(self, name: str, number: int = 0) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(json.dumps([name, number]) + "\n")
        stdin.flush()

    def answer(self) -> Answer:
        """To the oldest unanswered order. Raises Failed."""
        stdout = self._process.stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise Failed(f"the process {self.name} ended with status {self._process.wait()}")
        found: Answer = json.loads(line)
        if found.get("error"):
            raise Failed(f"{self.name}: {found['error']}")
        return found

    def kill(self) -> None:
        """End the process; its connections break."""
        self._process.kill()
        with self._process:  # closes the pipes and reaps it
            pass


def _top() -> Path:
    """The directory from which the package of this benchmark is found by the name that it was started with."""
    return ROOT if PACKAGE.startswith("benchmarks") else ROOT / ".typing"


def ask(children: Sequence[Child], name: str, number: int = 0) -> list[Answer]:
    """Give all the same order at once, and wait for all answers. Raises Failed."""
    for child in children:
        child.order(name, number)
    return [child.answer() for child in children]


def start(undo: ExitStack, module: str, args: Sequence[object]) -> Child:
    child = Child(module, args)
    undo.callback(child.kill)
    return child


def shares(count: int, most: int) -> Iterator[tuple[int, int]]:
    """`count` participants in processes of at most `most`: the first of each process, and how many it has."""
    for first in range(0, count, most):
        yield first, min(most, count - first)


@contextmanager
def etcd_server(directory: Path) -> Iterator[tuple[int, int]]:
    """One etcd server on loopback; yields its port and its process id."""
    from ..stores import _etcd

    port = processes.free_port()
    client, peer = (f"http://127.0.0.1:{each}" for each in (port, processes.free_port()))
    server = subprocess.Popen(
        [_etcd(), "--data-dir", str(directory / "etcd"), "--listen-client-urls", client,
         "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
         "--initial-cluster", f"default={peer}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for _ in range(LISTEN_TRIES):
            if processes.listening_inodes(port):
                break
            time.sleep(LISTEN_CHECK_S)
        else:
            raise Failed(f"etcd does not listen on port {port} after {LISTEN_TRIES * LISTEN_CHECK_S:g} s")
        yield port, server.pid
    finally:
        server.kill()
        server.wait()
