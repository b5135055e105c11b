"""Processes that finished and failed workers leave: waited for, kept or stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from support.rigs.one_host import alive, wait_gone

LEAVES = """
import subprocess, sys
code = "sleep " + sys.argv[1] + "; echo finished > " + sys.argv[2]
child = subprocess.Popen(
    ["sh", "-c", code], stdin=-3, stdout=-3, stderr=-3, start_new_session=True
)
print(child.pid, flush=True)
"""


class Leaver:
    """An agent whose worker exits 0 at once and leaves a shell running, in a session of its own."""

    def __init__(self, folder: Path, sleep_s: float, *flags: str) -> None:
        script = folder / "leaves.py"
        script.write_text(LEAVES)
        self.done = folder / "done"
        command = [sys.executable, "-m", "elastic_agent", "--standalone", *flags]
        self.agent = subprocess.Popen(
            [*command, str(script), str(sleep_s), str(self.done)],
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

    def end(self) -> tuple[int, str]:
        """Exit status and the rest of its messages."""
        _, err = self.agent.communicate(timeout=40)
        return self.agent.returncode, err


def test_an_uploader_that_a_finished_worker_left_may_end_by_itself(tmp_path: Path) -> None:
    """It has 30 s by default, and a line names it and says how long it has."""
    leaver = Leaver(tmp_path, 4)
    line = leaver.read_until("left behind")
    assert (
        f"waiting 28 s before stopping 2 processes that the workers left behind: {leaver.child} (sh -c sleep 4;" in line
    )
    code, err = leaver.end()
    assert code == 0, err
    assert leaver.done.exists()


def test_what_a_finished_worker_left_is_waited_for_until_a_signal(tmp_path: Path) -> None:
    """--leftovers wait: without limit; a request to stop reaches it at once."""
    leaver = Leaver(tmp_path, 1000, "--leftovers", "wait")
    assert f"waiting for 2 processes that the workers left behind: {leaver.child} (sh" in leaver.read_until(
        "left behind"
    )
    leaver.agent.send_signal(signal.SIGTERM)
    assert leaver.end()[0] == 143
    assert not alive(leaver.child)


def test_what_a_finished_worker_left_can_be_kept(tmp_path: Path) -> None:
    """--leftovers keep: it outlives the agent, as under torchrun, and ends by itself."""
    leaver = Leaver(tmp_path, 6, "--leftovers", "keep")
    assert f"leaving 2 processes that the workers left behind: {leaver.child} (sh" in leaver.read_until("left behind")
    code, err = leaver.end()
    assert code == 0, err
    assert alive(leaver.child)
    wait_gone([leaver.child], 20)
    assert leaver.done.exists()


def test_what_a_failed_worker_left_is_never_kept(tmp_path: Path) -> None:
    """--leftovers is about workers that exited 0."""
    (tmp_path / "fails.py").write_text(LEAVES + "sys.exit(3)\n")
    command = [sys.executable, "-m", "elastic_agent", "--standalone", "--leftovers", "keep", str(tmp_path / "fails.py")]
    done = subprocess.run(
        [*command, "1000", "x"], cwd=tmp_path, capture_output=True, text=True, timeout=40, check=False
    )
    assert done.returncode == 1
    assert not alive(int(done.stdout))
