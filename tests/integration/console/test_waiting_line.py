"""What an agent shows in place on a terminal while it waits, and that nothing else is disturbed by it."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.network import free_port

pytestmark = pytest.mark.slow
BOUND_S = 60.0
JOB = """\
import os, signal
if os.environ["ELASTIC_AGENT_ROUND"] == "1":
    signal.pause() if os.environ["RANK"] == "1" else exit(1)
print("trained", flush=True)
"""


class Terminal:
    """A pseudo-terminal on which one agent runs in the foreground."""

    def __init__(self, folder: Path) -> None:
        self._own, theirs = os.openpty()
        self.text = ""
        self.flags = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}",
                      "--rdzv-conf", "join_timeout=60,last_call_quiet=0.2", "--max-restarts", "1",
                      str(folder / "job.py")]  # fmt: skip
        (folder / "job.py").write_text(JOB)
        env = {**os.environ, "TERM": "xterm"}
        argv = ["setsid", "--ctty", "--wait", sys.executable, "-m", "elastic_agent", *self.flags]
        self.agent = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=folder)
        os.close(theirs)

    def read_until(self, part: str) -> str:
        """What was written up to the first `part` that was not read yet."""
        deadline = time.monotonic() + BOUND_S
        while part not in self.text:
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"no {part!r} in {self.text!r}"
            if select.select([self._own], [], [], left_s)[0]:
                try:
                    self.text += os.read(self._own, 1 << 16).decode()
                except OSError:  # Linux' word for the end of a terminal
                    assert part in self.text, self.text
        before, found, self.text = self.text.partition(part)
        return before + found

    def close(self) -> None:
        self.agent.kill()
        self.agent.wait()
        os.close(self._own)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path)
    yield made
    made.close()


def test_a_wait_is_one_line_that_counts_and_is_gone_when_it_is_over(terminal: Terminal, tmp_path: Path) -> None:
    """For how many nodes, since when, how long yet; each drawing takes the place of the one before, and what is printed
    next stands alone. A round that begins anew is a line that stays, with its reason: the terminal is the workers'
    then."""
    first = terminal.read_until("more node, ")
    assert first.endswith("\r\x1b[Kwaiting for 1 more node, ")
    assert re.fullmatch(r"[1-9][\d.]* s so far, 5\d s left", terminal.read_until(" left"))
    again = terminal.read_until(" left").rpartition("\r\x1b[K")[2]
    assert re.fullmatch(r"waiting for 1 more node, [2-9][\d.]* s so far, 5\d s left", again)
    other = subprocess.Popen(
        [sys.executable, "-m", "elastic_agent", *terminal.flags], cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    rest = terminal.read_until("trained")
    assert rest.rpartition("\r\x1b[K")[2].strip().splitlines()[-1] == "trained"
    assert "waiting for 1 more node" not in rest.rpartition("\r\x1b[K")[2]
    assert re.search(r"round 2 begins with 2 nodes, group rank \d: every place is taken", rest), rest
    assert "elastic-agent: exit 0" in terminal.read_until("elastic-agent: exit 0")
    out, err = other.communicate(timeout=BOUND_S)
    assert out == "trained\n"
    assert "\r" not in err  # no terminal there
    assert terminal.agent.wait(BOUND_S) == 0
