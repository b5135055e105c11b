"""Whole agents whose console or log disk fails: workers get no error, and the loss is reported."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.consoles import FINISH_S

LINES = 120_000
"""Lines of 100 bytes: more than the buffer of a console and its terminal or pipe hold together."""
WORKER = f"""
import sys
for number in range({LINES}):
    print(f"{{number:099d}}", file=sys.stderr if len(sys.argv) > 2 else sys.stdout)
open(sys.argv[1], "w").write("finished")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "writes.py"
    path.write_text(WORKER)
    return path


def agent(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "elastic_agent", "--standalone", *map(str, arguments)]


def finished(path: Path) -> bool:
    """Whether the worker ran to its end."""
    return path.exists() and path.read_text() == "finished"


@pytest.mark.parametrize("flags", [(), ("--tee", "3"), ("--redirects", "3")])
def test_a_blocked_terminal(script: Path, tmp_path: Path, flags: Sequence[str]) -> None:
    """The terminal takes nothing: the worker writes 12 MB to it and finishes, and so does the agent."""
    outer, inner = os.openpty()
    command = agent("--log-dir", tmp_path / "logs", *flags, script, tmp_path / "end")
    run = subprocess.Popen(command, stdout=inner, stderr=inner, start_new_session=True)
    os.close(inner)
    try:
        assert run.wait(FINISH_S) == 0
    finally:
        run.kill()
        run.wait()
        os.close(outer)
    assert finished(tmp_path / "end")
    if flags:
        (log,) = (tmp_path / "logs").rglob("stdout.log")
        assert log.stat().st_size == LINES * 100


@pytest.mark.parametrize("flags", [(), ("--tee", "3")])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_closed_console(script: Path, tmp_path: Path, flags: Sequence[str], stream: str) -> None:
    """`| head`: the console's reader is gone, and the worker runs to its end."""
    reader, writer = os.pipe()
    os.close(reader)
    command = agent("--log-dir", tmp_path / "logs", *flags, script, tmp_path / "end", *(["x"] * (stream == "stderr")))
    out, err = (writer, subprocess.PIPE) if stream == "stdout" else (subprocess.PIPE, writer)
    done = subprocess.run(command, timeout=FINISH_S, check=False, stdout=out, stderr=err)
    os.close(writer)
    assert done.returncode == 0
    assert finished(tmp_path / "end")
    if stream == "stdout":
        assert b"cannot write workers' output to the agent's stdout: Broken pipe" in done.stderr
        assert b"(%d line ends)" % LINES in done.stderr


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="mounting a small disk takes root")
@pytest.mark.parametrize("flags", [("--tee", "3"), ("--redirects", "3")])
def test_a_full_log_disk(script: Path, tmp_path: Path, flags: Sequence[str]) -> None:
    """A real file system without room: the worker runs to its end, the file has whole lines, the loss is reported."""
    disk, copy = tmp_path / "disk", tmp_path / "copy"
    disk.mkdir()
    inside = 'mount -t tmpfs -o size=1m none "$1" && d=$1 c=$2 && shift 2 && "$@"; r=$?; cp -r "$d" "$c"; exit $r'
    command = agent("--log-dir", disk, *flags, script, tmp_path / "end")
    unshare = ["unshare", "--mount", "sh", "-c", inside, "sh", str(disk), str(copy), *command]
    done = subprocess.run(unshare, timeout=FINISH_S, check=False, capture_output=True)
    if not copy.exists():
        pytest.skip(f"no mount namespace here: {done.stderr.decode()}")
    assert done.returncode == 0, done.stderr
    assert finished(tmp_path / "end")
    (log,) = copy.rglob("stdout.log")
    text = log.read_bytes()
    assert text.splitlines()[:100] == [b"%099d" % number for number in range(100)]
    assert b"No space left on device" in done.stderr
    assert b"%d bytes of workers' output" % (LINES * 100 - len(text)) in done.stderr
    if flags[0] == "--tee":
        assert done.stdout.count(b"\n") == LINES


FILLS = """
import os, sys
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
try:
    for number in range(10_000 * first):
        open(f"{sys.argv[1]}/{number}", "w").close()
except OSError as error:
    print("filled:", error.strerror, flush=True)
print("error file:", repr(os.environ["TORCHELASTIC_ERROR_FILE"]), flush=True)
sys.exit(3 if first else 0)
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="mounting a small disk takes root")
@pytest.mark.parametrize("full_at", ["the restart", "the start"])
def test_a_disk_without_room_for_a_directory_costs_no_restart(tmp_path: Path, full_at: str) -> None:
    """Workers run without log files, what would go there goes to the console, and one line says so."""
    disk, script = tmp_path / "disk", tmp_path / "fills.py"
    disk.mkdir()
    script.write_text(FILLS)
    inodes, restarts = (40, 1) if full_at == "the restart" else (1, 0)
    inside = f'mount -t tmpfs -o nr_inodes={inodes} none "$1" || exit 99; shift; exec "$@"'
    command = agent("--log-dir", disk, "--redirects", "3", "--max-restarts", str(restarts), script, disk)
    unshare = ["unshare", "--mount", "sh", "-c", inside, "sh", str(disk), *command]
    done = subprocess.run(unshare, timeout=FINISH_S, check=False, capture_output=True, text=True)
    if done.returncode == 99:
        pytest.skip("no mount namespace here")
    assert done.stderr.count("cannot make the log directory") == 1, done.stderr
    assert "No space left on device" in done.stderr
    assert "error file: ''" in done.stdout
    assert done.returncode == (0 if restarts else 1)
    assert "exit code 127" not in done.stderr


def test_a_stopped_terminal_does_not_keep_a_job_from_restarting(tmp_path: Path) -> None:
    """The agent's own messages are dropped when the terminal is blocked: the next round begins."""
    (tmp_path / "twice.py").write_text(
        "import os, sys\n"
        "first = os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'\n"
        "print('x' * 200_000, file=sys.stderr, flush=True)\n"
        "open(sys.argv[1] + '01'[not first], 'w').write('finished')\n"
        "sys.exit(first)\n"
    )
    outer, inner = os.openpty()
    command = agent("--max-restarts", "1", tmp_path / "twice.py", tmp_path / "end")
    run = subprocess.Popen(command, stdout=inner, stderr=inner, start_new_session=True)
    os.close(inner)
    try:
        assert run.wait(FINISH_S) == 0
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
        os.close(outer)
    assert finished(tmp_path / "end1")
