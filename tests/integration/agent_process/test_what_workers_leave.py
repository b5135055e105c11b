"""Processes that finished and failed workers leave: waited for, kept or stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from support.rigs.one_host import alive, wait_gone

LEAVES = """
import subprocess, sys
child = subprocess.Popen(
    ["sh", "-c", "cat go; echo finished > done"], stdin=-3, stdout=-3, stderr=-3, start_new_session=True
)
while not open(f"/proc/{child.pid}/task/{child.pid}/children").read():
    pass
print(child.pid, flush=True)
"""
"""Leaves two processes: a shell, and what it waits for, which ends once somebody has written to the pipe `go`."""


class Leaver:
    """An agent whose worker exits 0 at once and leaves a shell running, in a session of its own."""

    def __init__(self, folder: Path, *flags: str) -> None:
        script = folder / "leaves.py"
        script.write_text(LEAVES)
        self.done, self._go = folder / "done", folder / "go"
        os.mkfifo(self._go)
        self.agent = subprocess.Popen(
            [sys.executable, "-m", "elastic_agent", "--standalone", *flags, str(script)],
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.agent.stdout is not None
        self.child = int(self.agent.stdout.readline())

    def read_until(self, part: str) -> str:
        assert self.agent.stderr is not None
        for line in self.agent.stderr:
            if part in line:
                return line
        raise AssertionError(f"the agent ended without {part!r}")

    def let_finish(self) -> None:
        """Let what was left end by itself."""
        self._go.write_text("")

    def end(self) -> tuple[int, str]:
        """Exit status and the rest of its messages."""
        _, err = self.agent.communicate(timeout=60)
        return self.agent.returncode, err


def test_an_uploader_that_a_finished_worker_left_may_end_by_itself(tmp_path: Path) -> None:
    """It has 30 s by default, and a line names it and says how long it has."""
    leaver = Leaver(tmp_path)
    line = leaver.read_until("left behind")
    left = rf"2 processes that the workers left behind: {leaver.child} \(sh -c cat go;"
    assert re.search(rf"waiting 2[5-8] s before stopping {left}", line), line
    leaver.let_finish()
    code, err = leaver.end()
    assert code == 0, err
    assert leaver.done.exists()


def test_what_a_finished_worker_left_is_waited_for_until_a_signal(tmp_path: Path) -> None:
    """--leftovers wait: without limit; a request to stop reaches it at once."""
    leaver = Leaver(tmp_path, "--leftovers", "wait")
    assert f"waiting for 2 processes that the workers left behind: {leaver.child} (sh" in leaver.read_until(
        "left behind"
    )
    leaver.agent.send_signal(signal.SIGTERM)
    assert leaver.end()[0] == 143
    assert not alive(leaver.child)


def test_what_a_finished_worker_left_can_be_kept(tmp_path: Path) -> None:
    """--leftovers keep: it outlives the agent, as under torchrun, and ends by itself."""
    leaver = Leaver(tmp_path, "--leftovers", "keep")
    assert f"leaving 2 processes that the workers left behind: {leaver.child} (sh" in leaver.read_until("left behind")
    code, err = leaver.end()
    assert code == 0, err
    assert alive(leaver.child)
    leaver.let_finish()
    wait_gone([leaver.child], 20)
    assert leaver.done.exists()


def test_what_a_failed_worker_left_is_never_kept(tmp_path: Path) -> None:
    """--leftovers is about workers that exited 0."""
    os.mkfifo(tmp_path / "go")
    (tmp_path / "fails.py").write_text(LEAVES + "sys.exit(3)\n")
    command = [sys.executable, "-m", "elastic_agent", "--standalone", "--leftovers", "keep", str(tmp_path / "fails.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert not alive(int(done.stdout))
