"""Wrong flags, and programs that cannot run: each ends in one line with the thing, its value and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from support.rigs.command_line import assert_one_line, elastic_agent

WRONG: list[tuple[Sequence[str], Sequence[str]]] = [
    (["--nnodes", "3:2"], ["--nnodes", "'3:2'", "correct"]),
    (["--nnodes", "0"], ["--nnodes", "'0'"]),
    (["--nproc-per-node", "many"], ["--nproc-per-node", "'many'"]),
    (["--max-restart", "-1"], ["--max-restarts", "-1"]),
    (["--rdzv-backend", "etcd3", "--rdzv-endpoint", "h:1"], ["--rdzv-backend", "'etcd3'", "c10d"]),
    (["--rdzv-bakend", "c10d"], ["--rdzv-bakend", "did you mean '--rdzv-backend'"]),
    (["--rdzv-backend", "c10d", "--nnodes", "2"], ["--rdzv-endpoint HOST:PORT"]),
    (["--rdzv-backend", "c10d", "--nnodes", "2", "--rdzv-endpoint", "h:70000"], ["'h:70000'", "0 to 65535"]),
    (["--rdzv-backend", "c10d", "--nnodes", "2", "--rdzv-endpoint", "h:0"], ["'h:0'", "port 0", "give the port"]),
    (["--rdzv-backend", "c10d", "--nnodes", "2", "--rdzv-endpoint", "h:x"], ["'h:x'", "give HOST:PORT"]),
    (["--rdzv-backend", "c10d", "--nnodes", "2", "--rdzv-endpoint", "a b:1"], ["'a b:1'"]),
    (["--rdzv-conf", "read_timout=3"], ["'read_timout'", "did you mean 'read_timeout'"]),
    (["--rdzv-conf", "read_timeout"], ["'read_timeout'", "key=value"]),
    (["--rdzv-conf", "read_timeout=soon"], ["read_timeout", "'soon'", "seconds"]),
    (["--rdzv-id", "x" * 201], ["201 characters", "limit is 200", "shorten"]),
    (["--nnodes", "2", "--node-rank", "2", "--master-port", "29777"], ["--node-rank is 2", "0 to 1"]),
    (["--nnodes", "2", "--master-port", "70000"], ["--master-port", "'70000'"]),
    (["--nnodes", "2", "--master-port", "0"], ["0, which means any", "--master-port"]),
    (["--log-dir", "/proc/none"], ["/proc/none", "--log-dir"]),
    (["--log-dir", "train.py/logs"], ["train.py", "--log-dir"]),
    (["--log-dir", "train.py"], ["'train.py'", "directory"]),
]


@pytest.mark.parametrize(("flags", "parts"), WRONG, ids=[" ".join(flags)[:40] for flags, _ in WRONG])
def test_a_wrong_flag_brings_one_line(flags: Sequence[str], parts: Sequence[str], script: str, tmp_path: Path) -> None:
    """It has the flag, its value and what to do; no worker starts."""
    assert_one_line(elastic_agent(*flags, script, cwd=tmp_path), 2, *parts)


MISSING: list[tuple[Sequence[str], Mapping[str, str], Sequence[str]]] = [
    (["gone.py"], {}, ["'gone.py'", "does not exist", "correct the path"]),
    (["folder"], {}, ["'folder'", "directory", "__main__.py"]),
    (["-m", "gone_module"], {}, ["'gone_module'", "PYTHONPATH"]),
    (["-m", "gone_package.train"], {}, ["'gone_package'", "PYTHONPATH"]),
    (["--no-python", "gone-program"], {}, ["'gone-program'", "PATH"]),
    (["--no-python", "./gone"], {}, ["'./gone'", "does not exist"]),
    (["--no-python", "./train.py"], {}, ["'./train.py'", "not executable", "chmod +x"]),
    (["--no-python", "echo"], {"PATH": ""}, ["'echo'", "PATH"]),
    (["train.py"], {"PYTHON_EXEC": "/gone/python"}, ["PYTHON_EXEC", "'/gone/python'"]),
    (["train.py"], {"PYTHON_EXEC": "train.py"}, ["PYTHON_EXEC", "'train.py'"]),
    ([], {}, ["no script", "give its path"]),
]


@pytest.mark.parametrize(("args", "env", "parts"), MISSING, ids=[" ".join(args) for args, _, _ in MISSING])
def test_what_cannot_run_brings_one_line(
    args: Sequence[str], env: Mapping[str, str], parts: Sequence[str], script: str, tmp_path: Path
) -> None:
    """A script, module, program or interpreter that does not exist or cannot be run is found before a worker starts."""
    (tmp_path / "folder").mkdir()
    assert_one_line(elastic_agent(*args, cwd=tmp_path, env=env), 2, *parts)


@pytest.mark.parametrize("args", [["-m", "here"], ["-m", "package.deep"], ["program"], ["--no-python", "./run.sh"]])
def test_what_can_run_is_not_refused(args: Sequence[str], tmp_path: Path) -> None:
    """A module in this directory, one in a package without __init__.py, a directory with __main__.py, an executable
    script."""
    for path in ("here.py", "package/deep.py", "program/__main__.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("print('ran')\n")
    (tmp_path / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "run.sh").chmod(0o755)
    done = elastic_agent(*args, cwd=tmp_path)
    assert (done.code, done.out) == (0, "ran\n"), done.err


def test_a_program_that_the_kernel_cannot_run_ends_the_job(tmp_path: Path) -> None:
    """Only exec finds that out, so it is the worker's failure: status 1, with the reason in the last line."""
    program = tmp_path / "garbage"
    program.write_bytes(b"\x00\x01 not a program")
    program.chmod(0o755)
    done = elastic_agent("--no-python", "./garbage", cwd=tmp_path)
    assert done.code == 1
    assert "Traceback" not in done.err
    assert "Exec format error: './garbage'" in done.last
