"""Closed streams, deleted directories, a bare environment, few descriptors: the job runs, or one line says why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from support.network import free_port
from support.rigs.command_line import AGENT, OneNode, assert_one_line, elastic_agent

CLOSERS = {"0": "<&-", "1": ">&-", "2": "2>&-", "12": ">&- 2>&-", "012": "<&- >&- 2>&-"}


def in_shell(redirects: str, args: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> int:
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirects}', "sh", *AGENT, *args],
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        cwd=cwd,
        check=False,
        timeout=30,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ).returncode


@pytest.mark.parametrize("tee", ["0", "3"])
@pytest.mark.parametrize("closed", CLOSERS)
def test_closed_standard_streams_change_nothing(closed: str, tee: str, tmp_path: Path) -> None:
    """The job runs, output is dropped, and no descriptor of the agent gets the number of a standard stream."""
    (tmp_path / "look.py").write_text(
        "import json, os, sys\n"
        "print('out'); print('err', file=sys.stderr)\n"
        "json.dump([os.readlink(f'/proc/self/fd/{fd}') for fd in range(3)], open('seen', 'w'))\n"
    )
    assert in_shell(CLOSERS[closed], ["--tee", tee, "look.py"], tmp_path) == 0
    seen = json.loads((tmp_path / "seen").read_text())
    assert seen[0] == "/dev/null"
    assert [target.startswith("pipe:") for target in seen[1:]] == [True, True], seen


@pytest.mark.parametrize("redirects", [*CLOSERS.values(), "2>/dev/full", ">/dev/full 2>/dev/full"])
@pytest.mark.parametrize(("name", "status"), [("gone.py", 2), ("fail.py", 1), ("fine.py", 0)])
def test_an_exit_status_needs_no_console(redirects: str, name: str, status: int, tmp_path: Path) -> None:
    """Whether or not the last line can be written, the status is right."""
    (tmp_path / "fail.py").write_text("raise SystemExit(7)\n")
    (tmp_path / "fine.py").write_text("")
    assert in_shell(redirects, [name], tmp_path) == status


@pytest.mark.parametrize(
    ("program", "status", "unheard"),
    [
        (("worker", "verify", "."), 74, 1),
        (("worker", "verify", "--json", "."), 74, 1),
        (("control.watcher", "advise", "--save", "40s", "--every", "3h"), 74, 0),
        (("control.ctl", "explain", "events.jsonl"), 74, 0),
        (("control.ctl", "status"), 3, 3),
    ],
)
def test_a_program_whose_answer_cannot_be_printed_gives_no_other_answer(
    program: tuple[str, ...], status: int, unheard: int, tmp_path: Path
) -> None:
    """74 with a line on a full disk: 1 would say of checkpoints that they are damaged. Where stdout was closed from
    the beginning, the answer is the status."""
    (tmp_path / "events.jsonl").write_text("")
    words = [sys.executable, "-m", f"elastic_agent.{program[0]}", *program[1:]]
    env = {**os.environ, "ELASTIC_AGENT_RUN_DIR": str(tmp_path / "none")}
    for redirect, wanted in ((">/dev/full", status), (">&-", unheard)):
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" {redirect}', "sh", *words],
            cwd=tmp_path,
            env=env,
            check=False,
            timeout=60,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert done.returncode == wanted, done.stderr
        assert done.stderr.count("\n") == (0 if wanted in (0, 1) else 1), done.stderr


@pytest.mark.parametrize("args", [["train.py"], ["SCRIPT"], ["--log-dir", "logs", "SCRIPT"], ["-m", "this"]])
def test_a_deleted_working_directory_brings_one_line(args: Sequence[str], script: str, tmp_path: Path) -> None:
    """Neither the agent nor workers can start there."""
    gone = tmp_path / "gone"
    gone.mkdir()
    filled = [script if arg == "SCRIPT" else arg for arg in args]
    code = f"import os; os.rmdir({str(gone)!r})"
    assert_one_line(elastic_agent(*filled, cwd=gone, code=code), 2, "working directory", "cd ")


def test_a_working_directory_deleted_during_the_run_is_the_hosts_failure(one_node: OneNode) -> None:
    """Workers that run go on; those of the next round cannot start, which charges nobody, and the last line has the
    reason."""
    here = one_node.folder / "here"
    here.mkdir()
    agent = one_node.start("--max-restarts", "5", cwd=here)
    (worker,) = one_node.desk.wait_world(1)
    here.rmdir()
    worker.order("exit 3")
    assert agent.wait() == 71
    assert "the working directory is gone" in agent.text().splitlines()[-1]
    assert agent.text().count("costs this node no restart") == 2
    assert "Traceback" not in agent.text()


def test_a_bare_environment_is_enough(script: str, tmp_path: Path) -> None:
    """No HOME, no PATH, no TMPDIR, no locale: the job runs."""
    done = subprocess.run(
        [*AGENT, script],
        env={"PYTHONPATH": os.environ["PYTHONPATH"]},
        cwd=tmp_path,
        capture_output=True,
        check=False,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


def test_a_temporary_directory_that_cannot_be_used_is_passed_over(script: str, tmp_path: Path) -> None:
    """TMPDIR may not exist, or take no directory (as /proc); another place is found."""
    for place in ("/gone", "/proc"):
        done = elastic_agent(script, cwd=tmp_path, env={"TMPDIR": place})
        assert (done.code, done.out) == (0, "trained\n"), done.err


@pytest.mark.parametrize("backend", ["memory", "c10d"])
def test_64_descriptors_are_enough_for_a_few_workers(backend: str, script: str, tmp_path: Path) -> None:
    """Four workers run with a low limit on open files, also on the node that hosts the store."""
    there = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"] if backend == "c10d" else []
    code = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"
    done = elastic_agent(*there, "--nproc-per-node", "4", "--tee", "3", script, cwd=tmp_path, code=code)
    assert done.code == 0, done.err
    assert done.out.count("trained\n") == 4


@pytest.mark.parametrize(("backend", "limit"), [("memory", 8), ("memory", 12), ("memory", 20), ("c10d", 20)])
def test_too_few_descriptors_end_the_job_with_a_reason(backend: str, limit: int, script: str, tmp_path: Path) -> None:
    """With a limit that is far too low, the job ends, and the last line names the limit."""
    there = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"] if backend == "c10d" else []
    code = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))"
    done = elastic_agent(*there, "--nproc-per-node", "8", "--tee", "3", script, cwd=tmp_path, code=code)
    assert "Traceback" not in done.err
    assert done.code not in (0, 120), done.err
    assert "oo many open files" in done.last
    assert "ulimit" in done.last
