"""Error files and logs that cannot be written or hold garbage: the job goes on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.rigs.command_line import OneNode, elastic_agent

GARBAGE = {
    "empty": b"",
    "binary": bytes(range(256)),
    "cut short": b'{"message": {"message": "boom", "extraInfo": {"py_call',
    "a list": b"[1, 2]",
    "deep": b"[" * 100_000,
    "too long": b'{"message": "' + b"x" * (1 << 20) + b'"}',
    "other types": b'{"message": 7, "timestamp": {}}',
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_a_garbage_error_file_does_not_prevent_a_restart(content: bytes, one_node: OneNode) -> None:
    """The job restarts within its budget; the summary has the file's path and what is wrong with it."""
    agent = one_node.start("--max-restarts", "1")
    path = Path()
    for attempt in range(2):
        (worker,) = one_node.desk.wait_world(1, after=attempt)
        assert worker.restarts == attempt
        path = Path(worker.env["TORCHELASTIC_ERROR_FILE"])
        path.write_bytes(content)
        worker.order("exit 3")
    assert agent.wait() == 1
    assert "Traceback" not in agent.text()
    assert f"error file {path}: " in agent.text()


def test_the_agents_error_file_that_cannot_be_written_brings_a_line(one_node: OneNode) -> None:
    """TORCHELASTIC_ERROR_FILE of the agent may be a path that cannot be written: one line more, the same status."""
    agent = one_node.start("--max-restarts", "0", TORCHELASTIC_ERROR_FILE="/gone/error.json")
    one_node.desk.wait_world(1)[0].order("exit 3")
    assert agent.wait() == 1
    assert "cannot write error file /gone/error.json" in agent.text()


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced by a file"])
def test_a_log_directory_lost_during_the_run_is_made_again_or_done_without(replaced: bool, one_node: OneNode) -> None:
    """If it was removed, the next round makes it again; if a file is in its place, workers run without log files."""
    logs = one_node.folder / "logs"
    agent = one_node.start("--max-restarts", "1", "--log-dir", str(logs), "--redirects", "3")
    (worker,) = one_node.desk.wait_world(1)
    subprocess.run(["rm", "-r", str(logs)], check=True)
    if replaced:
        logs.write_text("")
    worker.order("exit 3")
    (again,) = one_node.desk.wait_world(1, after=worker.round)
    again.order("exit 0")
    assert agent.wait() == 0
    assert "Traceback" not in agent.text()
    if replaced:
        assert again.env["TORCHELASTIC_ERROR_FILE"] == ""
        assert agent.text().count(f"cannot make the log directory {logs}") == 1
    else:
        assert Path(again.env["TORCHELASTIC_ERROR_FILE"]).parent.is_dir()


@pytest.mark.parametrize("how", ["--redirects", "--tee"])
def test_a_log_file_that_is_full_loses_output_and_ends_no_worker(how: str, tmp_path: Path) -> None:
    """Without room for logs, tee'd output still reaches the console, one line names the file, and the job succeeds."""
    (tmp_path / "talk.py").write_text(
        "import os, sys\n"
        "for n in range(2000):\n"
        "    try: os.write(1, b'x' * 99 + b'\\n')\n"
        "    except OSError: sys.exit(0 if n else 1)\n"
    )
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))"
    done = elastic_agent(how, "1", "talk.py", cwd=tmp_path, code=code)
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    if how == "--tee":
        assert done.out.count("x" * 99 + "\n") == 2000
        assert done.err.count("stdout.log: File too large") == 1
