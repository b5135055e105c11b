"""A show of about half a minute: two nodes train, one of them dies, another one comes, and the job goes on.

    python examples/demo.py

The nodes are agents on this machine, started as anybody would from a shell. What they say is shown with the node's name
in place of host and process id, and cut where it is long. Exits 0 if the story went as it should.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

SCRIPT = Path(__file__).parent / "digits" / "train.py"
BOUND_S = 90.0
"""How long the show waits for one thing to happen: ten times what it takes on two busy cores."""
WIDTH, LONGEST = 100, 240
"""Columns of a line of text, and characters shown of one that is longer."""
COLOURS = {"demo": "1", "node-a": "36", "node-b": "33", "node-c": "35"}
AGENT_SAID = re.compile(r"^\[elastic-agent \S+ [\d:]+\] |^elastic-agent: ")


class StoryFailed(Exception):
    """Something that should have happened did not."""


class Show:
    """What has been said so far: on the terminal, and to whoever waits for it."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        """A node's name here, by what the agents call it: host and process id."""
        self._began = time.monotonic()
        self._said: list[tuple[str, str]] = []
        self._silent: set[str] = set()
        self._changed = threading.Condition()
        self._coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def say(self, who: str, text: str, kind: str = "") -> None:
        """Show when it was said, by whom, and what."""
        for called, name in self.names.items():
            text = re.sub(rf"{re.escape(called)}\b", name, text)
        shown = text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
        heading = f"{time.monotonic() - self._began:5.1f} s  {who:<6} {kind:<6} | "
        lines = textwrap.wrap(shown, WIDTH, initial_indent=heading, subsequent_indent=" " * (len(heading) - 2) + "| ")
        with self._changed:
            self._said.append((who, text))
            self._changed.notify_all()
            for line in lines:
                print(f"\033[{COLOURS[who]}m{line}\033[0m" if self._coloured else line, flush=True)

    def silence(self, who: str) -> None:
        """`who` will say no more."""
        with self._changed:
            self._silent.add(who)
            self._changed.notify_all()

    def wait(self, who: str, pattern: str) -> None:
        """Until `who` has said something in which `pattern` is found. Raises StoryFailed if that will not happen."""

        def said() -> bool:
            return any(speaker == who and re.search(pattern, text) for speaker, text in self._said)

        with self._changed:
            self._changed.wait_for(lambda: said() or who in self._silent, BOUND_S)
            if not said():
                raise StoryFailed(f"{who} never said {pattern!r}")


class Node:
    """One node's agent, and the thread that shows what it says."""

    def __init__(self, show: Show, name: str, flags: list[str], training: list[str]) -> None:
        self.name = name
        self._show = show
        show.say("demo", f"starting {name}: elastic-agent {' '.join(flags[:6])} ... {' '.join(training[:1])} ...")
        self._agent = subprocess.Popen(
            [sys.executable, "-m", "elastic_agent", *flags, *training],
            env={**os.environ, "LOGLEVEL": "INFO", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        show.names[f"{os.uname().nodename}:{self._agent.pid}"] = name
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._agent.stdout or ():
            text, by_agent = AGENT_SAID.subn("", line.rstrip())
            self._show.say(self.name, text, "agent" if by_agent else "worker")
        self._show.silence(self.name)

    def end(self, signum: int | None = None) -> int:
        """Send it a signal, if any, and wait for its end; returns its exit status."""
        if signum is not None and self._agent.poll() is None:
            self._agent.send_signal(signum)
        try:
            self._agent.wait(BOUND_S)
        except subprocess.TimeoutExpired:
            self._agent.kill()
        self._reader.join(BOUND_S)
        if self._agent.stdout is not None:
            self._agent.stdout.close()
        return self._agent.wait()


def tell_story(show: Show, folder: str, epoch_seconds: float) -> None:
    """The whole show. Raises StoryFailed."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    flags = ["--nnodes", "1:2", "--rdzv-endpoint", endpoint, "--rdzv-id", "demo", "--rdzv-backend", "c10d"]
    flags += ["--redirects", "2", "--log-dir", f"{folder}/logs"]
    training = [os.path.relpath(SCRIPT), "--checkpoint-dir", folder, "--epoch-seconds", str(epoch_seconds)]
    nodes: list[Node] = []

    def start(name: str) -> Node:
        hosting = ["--rdzv-conf", f"is_host={int(not nodes)}"]
        nodes.append(Node(show, name, [*flags, *hosting], training))
        return nodes[-1]

    try:
        first, second = start("node-a"), start("node-b")
        show.wait("node-a", "epoch 3: ")
        show.say("demo", "killing the agent of node-b with SIGKILL, as if its machine had lost power")
        second.end(signal.SIGKILL)
        show.wait("node-a", "round 2 begins with 1 node.*node-b was lost")
        show.wait("node-a", "epoch 4: ")
        show.say("demo", "node-a trains alone; here comes another node")
        third = start("node-c")
        show.wait("node-a", "round 3 begins with 2 nodes")
        statuses = {node.name: node.end() for node in (first, third)}
        show.wait("node-a", r"trained 12 epochs on 2 workers: test accuracy (9[5-9]|100)\.")
    finally:
        for node in nodes:
            node.end(signal.SIGTERM)
    show.say("demo", "exit statuses: " + ", ".join(f"{name} {status}" for name, status in statuses.items()))
    if any(statuses.values()):
        raise StoryFailed("a node that lived to the end did not exit 0")


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epoch-seconds", type=float, default=1.0, metavar="S", help="how long an epoch lasts")
    arguments = parser.parse_args()
    show = Show()
    try:
        with tempfile.TemporaryDirectory(prefix="elastic-agent-demo-") as folder:
            tell_story(show, folder, arguments.epoch_seconds)
    except StoryFailed as failure:
        show.say("demo", f"the show failed: {failure}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
