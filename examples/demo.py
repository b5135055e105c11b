"""A demonstration of half a minute: two nodes train, one is killed, another one joins, and the job continues. It ends
with the report of what it showed.

    python examples/demo.py

The nodes are agents on this host, started as from a shell. Their output is shown with the node's name in place of host
and process id; long lines are cut. Exits 0 if everything happened as it should.
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
"""How long the demo waits for one line of output: ten times what it takes on two busy cores."""
WIDTH, LONGEST = 100, 240
"""Columns of a line of text, and characters shown of one that is longer."""
COLOURS = {"demo": "1", "node-a": "36", "node-b": "33", "node-c": "35"}
AGENT_LINE = re.compile(r"^\[elastic-agent \S+ [\d:]+\] |^elastic-agent: ")


class DemoFailed(Exception):
    """A line of output that should have come did not."""


class Transcript:
    """All output so far, on the terminal and for those that wait for a line of it."""

    def __init__(self, hides: str = "", bound_s: float = BOUND_S) -> None:
        """hides: lines of nodes in which this pattern is found are not shown; they can be waited for. bound_s: how long
        a line, or the end of a node, is waited for."""
        self.bound_s = bound_s
        self._hides = re.compile(hides) if hides else None
        self.names: dict[str, str] = {}
        """A node's name in the demo, by its name in the agents' output: host and process id."""
        self._began = time.monotonic()
        self._lines: list[tuple[str, str]] = []
        """Source (the demo or a node) and text of each line."""
        self._ended: set[str] = set()
        self._changed = threading.Condition()
        self._coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def add(self, source: str, text: str, kind: str = "") -> None:
        """Show a line with its time and source."""
        for called, name in self.names.items():
            text = re.sub(rf"{re.escape(called)}\b", name, text)
        shown = text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
        hidden = kind and self._hides is not None and self._hides.search(text)
        heading = f"{time.monotonic() - self._began:5.1f} s  {source:<6} {kind:<6} | "
        lines = textwrap.wrap(shown, WIDTH, initial_indent=heading, subsequent_indent=" " * (len(heading) - 2) + "| ")
        with self._changed:
            self._lines.append((source, text))
            self._changed.notify_all()
            for line in lines if not hidden else ():
                print(f"\033[{COLOURS.get(source, '36')}m{line}\033[0m" if self._coloured else line, flush=True)

    def end(self, source: str) -> None:
        """No more lines will come from `source`."""
        with self._changed:
            self._ended.add(source)
            self._changed.notify_all()

    def wait(self, sources: set[str], pattern: str, after: int = -1) -> int:
        """Wait for a line from one of `sources` in which `pattern` is found, after line number `after`; returns its
        number. Raises DemoFailed if none comes."""

        def found() -> int | None:
            for number, (source, text) in enumerate(self._lines):
                if number > after and source in sources and re.search(pattern, text):
                    return number
            return None

        with self._changed:
            self._changed.wait_for(lambda: found() is not None or sources <= self._ended, self.bound_s)
            number = found()
        if number is None:
            why = "before its end" if sources <= self._ended else f"in {self.bound_s:g} s"
            raise DemoFailed(f"no line with {pattern!r} came from {' or '.join(sorted(sources))} {why}")
        return number


class Node:
    """One node's agent, or another program, and the thread that shows its output."""

    def __init__(
        self,
        transcript: Transcript,
        name: str,
        flags: list[str],
        training: list[str],
        program: tuple[str, str] = ("elastic-agent", "elastic_agent"),
        events: str = "",
    ) -> None:
        """program: what its users call it, and its module. events: the file for the agent's events."""
        self.name = name
        self._transcript = transcript
        self._kind = "worker" if program[0] == "elastic-agent" else ""
        shown = " ".join([program[0], *flags[:6], *(["...", training[0], "..."] if training else [])])
        transcript.add("demo", f"starting {name}: {shown}")
        self._agent = subprocess.Popen(
            [sys.executable, "-m", program[1], *flags, *training],
            env={**os.environ, "LOGLEVEL": "INFO", "OMP_NUM_THREADS": "1", "ELASTIC_AGENT_EVENTS": events},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        transcript.names[f"{os.uname().nodename}:{self._agent.pid}"] = name
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._agent.stdout or ():
            text, by_agent = AGENT_LINE.subn("", line.rstrip())
            self._transcript.add(self.name, text, "agent" if by_agent else self._kind)
        self._transcript.end(self.name)

    def end(self, signum: int | None = None) -> int:
        """Send the agent a signal, if any, and wait for its exit; returns its exit status."""
        if signum is not None and self._agent.poll() is None:
            self._agent.send_signal(signum)
        try:
            self._agent.wait(self._transcript.bound_s)
        except subprocess.TimeoutExpired:
            self._agent.kill()
        self._reader.join(self._transcript.bound_s)
        if self._agent.stdout is not None:
            self._agent.stdout.close()
        return self._agent.wait()


def run_demo(transcript: Transcript, folder: str, epoch_seconds: float) -> None:
    """Run all of it. Raises DemoFailed."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    flags = ["--nnodes", "1:2", "--rdzv-endpoint", endpoint, "--rdzv-id", "demo", "--rdzv-backend", "c10d"]
    flags += ["--redirects", "2", "--log-dir", f"{folder}/logs"]
    training = [os.path.relpath(SCRIPT), "--checkpoint-dir", folder, "--epoch-seconds", str(epoch_seconds)]
    nodes: list[Node] = []

    def start(name: str) -> Node:
        hosting = ["--rdzv-conf", f"is_host={int(not nodes)}"]
        nodes.append(Node(transcript, name, [*flags, *hosting], training, events=f"{folder}/{name}.jsonl"))
        return nodes[-1]

    try:
        first, second = start("node-a"), start("node-b")
        # The worker with rank 0 prints the epochs, and either node may have it.
        transcript.wait({"node-a", "node-b"}, "epoch 3: ")
        transcript.add("demo", "killing the agent of node-b with SIGKILL, as if its host had lost power")
        second.end(signal.SIGKILL)
        alone = transcript.wait({"node-a"}, "round 2 begins with 1 node.*node-b was lost")
        transcript.wait({"node-a"}, r"epoch \d+: ", after=alone)
        transcript.add("demo", "node-a trains alone; starting another node")
        third = start("node-c")
        transcript.wait({"node-a"}, "round 3 begins with 2 nodes")
        statuses = {node.name: node.end() for node in (first, third)}
        transcript.wait(
            {"node-a", "node-c"},
            r"trained 12 epochs on 2 workers, every sample of every epoch exactly once: test accuracy (9[5-9]|100)\.",
        )
    finally:
        for node in nodes:
            node.end(signal.SIGTERM)
    transcript.add("demo", "exit statuses: " + ", ".join(f"{name} {status}" for name, status in statuses.items()))
    if any(statuses.values()):
        raise DemoFailed("node-a or node-c did not exit 0")
    report(transcript, folder)


def report(transcript: Transcript, folder: str) -> None:
    """What was shown, as operators are told: from the events of all three nodes, as text and as a page."""
    events = sorted(str(path) for path in Path(folder).glob("*.jsonl*"))
    page = str(Path(tempfile.gettempdir(), "elastic-agent-demo.html"))
    transcript.add("demo", "elasticctl explain " + " ".join(map(os.path.basename, events)))
    for line in elasticctl("explain", *events).splitlines():
        transcript.add("demo", line)
    elasticctl("report", *events, "-o", page)
    transcript.add("demo", f"the same as a page, by elasticctl report: {page}")


def elasticctl(*words: str) -> str:
    """What it prints. Raises DemoFailed."""
    command = [sys.executable, "-m", "elastic_agent.control.ctl", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)
    if done.returncode:
        raise DemoFailed(f"elasticctl {words[0]}: {done.stderr.strip()}")
    return done.stdout


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epoch-seconds", type=float, default=1.0, metavar="S", help="how long an epoch lasts")
    arguments = parser.parse_args()
    transcript = Transcript()
    try:
        with tempfile.TemporaryDirectory(prefix="elastic-agent-demo-") as folder:
            run_demo(transcript, folder, arguments.epoch_seconds)
    except DemoFailed as failure:
        transcript.add("demo", f"the demo failed: {failure}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
