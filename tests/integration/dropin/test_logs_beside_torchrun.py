"""Redirects, tee, filters and log trees: a table of cases, run under torchrun and under elastic-agent, with one result.

Compared are the files below --log-dir with their content, and the lines on stdout and stderr as sets, because the order
of two workers' lines is nobody's. Left out is what the two launchers print themselves.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WORKER = """
import os, sys
rank = os.environ["RANK"]
for fd, stream, words in ((1, "out", ("apple", "pear")), (2, "err", ("apple", "fig,"))):
    for word in words:
        os.write(fd, f"{stream} {word} {rank}\\n".encode())
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 and rank == "1" else 0)
"""
"""Writes each line in one call: `print` in an unbuffered worker makes two, and two workers' lines would mix."""

DRIVER = """
import contextlib, json, os, shutil, sys
from importlib import import_module

launch, cases, folder = import_module(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
for name, flags, tail, env in cases:
    home = os.path.join(folder, name)
    os.makedirs(home)
    saved = dict(os.environ)
    os.environ.update(env)
    keep = [os.dup(1), os.dup(2)]
    for fd, stream in ((1, "stdout"), (2, "stderr")):
        made = os.open(os.path.join(home, stream), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(made, fd)
        os.close(made)
    try:
        launch.main([*(flag.replace("HOME", home) for flag in flags), *tail])
        end = "ended well"
    except BaseException as error:
        end = type(error).__name__
    sys.stdout.flush(), sys.stderr.flush()
    for fd, kept in zip((1, 2), keep):
        os.dup2(kept, fd)
        os.close(kept)
    os.environ.clear()
    os.environ.update(saved)
    with open(os.path.join(home, "end"), "w") as file:
        file.write(end)
"""
"""Runs all cases in one process, since torch takes seconds to import."""

TWO = ["--nproc-per-node=2", "--rdzv-id=job", "--log-dir=HOME/logs"]
FILTERS = ["--duplicate-stdout-filters=apple", "--duplicate-stderr-filters=fig,,"]
RANK_PREFIX = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${role_name}/${rank}/${local_rank}] "}
Case = tuple[str, list[str], list[str], dict[str, str]]


def _cases(script: str) -> list[Case]:
    """Name, flags, script and arguments, environment."""
    made: list[Case] = []

    def add(*flags: str, tail: tuple[str, ...] = (), base: list[str] = TWO, env: dict[str, str] | None = None) -> None:
        name = re.sub(r"[^\w=:,.-]+", "_", " ".join((*flags, *tail, *(env or {})))) or "plain"
        made.append((f"{len(made):02}_{name}", [*base, *flags], [script, *tail], env or {}))

    add()
    for bits in ("1", "2", "3", "0:3", "1:1", "0:1,1:2", "0:3,1:3"):
        add(f"--redirects={bits}")
        add(f"--tee={bits}")
    for redirects, tee in (("3", "1"), ("1", "2"), ("0:3", "1:3"), ("3", "3")):
        add(f"--redirects={redirects}", f"--tee={tee}")
    for bits in ("0", "3"):
        add("--local-ranks-filter=0", f"--redirects={bits}")
        add("--local-ranks-filter=1", f"--tee={bits}")
        add(*FILTERS, f"--redirects={bits}")
        add(*FILTERS, f"--tee={bits}")
    add(*FILTERS, "--tee=0:1,1:2")
    add(*FILTERS, "--tee=3", "--local-ranks-filter=0")
    add("--tee=3", env=RANK_PREFIX)
    add("--tee=3", "--role=trainer")
    add("--log-dir=/dev/null", "--redirects=0", base=TWO[:2])
    add("--redirects=3", tail=("7",))
    add("--tee=3", tail=("7",))
    add("--max-restarts=1", "--redirects=3", tail=("7",))
    return made


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, dict[str, Any]]]:
    """What each case left under each launcher: by launcher and by case."""
    folder = tmp_path_factory.mktemp("logs")
    script = folder / "worker.py"
    script.write_text(WORKER)
    driver = folder / "driver.py"
    driver.write_text(DRIVER)
    cases = _cases(str(script))

    def run(launcher: str) -> dict[str, dict[str, Any]]:
        home = folder / launcher
        command = [sys.executable, str(driver), launcher, json.dumps(cases), str(home)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return {name: _left(home / name) for name, *_ in cases}

    launchers = ("torch.distributed.run", "elastic_agent.torchrun")
    with ThreadPoolExecutor(len(launchers)) as pool:
        return dict(zip(launchers, pool.map(run, launchers), strict=True))


def _left(home: Path) -> dict[str, Any]:
    """The log tree of one case, its workers' lines on the console, and how it ended."""
    tree = {}
    for path in (home / "logs").rglob("*"):
        name = re.sub(r"^[0-9a-f-]{36}_\w{8}(?=/|$)", "job", path.relative_to(home / "logs").as_posix())
        content = sorted(path.read_text().splitlines()) if path.is_file() else None
        # An error file has the time; a worker that its agent stopped may write one, or not, depending on the moment.
        tree[name] = None if name.endswith("error.json") else content
    lines = {
        stream: sorted(line for line in (home / stream).read_text().splitlines() if re.search(r"(out|err) \w+", line))
        for stream in ("stdout", "stderr")
    }
    return {"tree": tree, **lines, "end": (home / "end").read_text()}


NAMES = [name for name, *_ in _cases("worker.py")]


def test_the_table_has_the_cases_that_differed() -> None:
    """34 and more; among them filters of which nothing is tee'd, and jobs that fail."""
    assert len(NAMES) >= 34


@pytest.mark.parametrize("name", NAMES)
def test_logs_are_the_same_as_torchruns(name: str, results: dict[str, dict[str, dict[str, Any]]]) -> None:
    theirs, ours = (results[launcher][name] for launcher in ("torch.distributed.run", "elastic_agent.torchrun"))
    if name.endswith("7"):
        # The peer of a failed worker is stopped at once under both, so it may not have printed all.
        for result in (theirs, ours):
            assert any("out pear 1" in line for line in _everything(result)), result
        assert theirs["tree"].keys() - ours["tree"].keys() <= {key for key in theirs["tree"] if "error.json" in key}
        assert ours["tree"].keys() - theirs["tree"].keys() <= {key for key in ours["tree"] if "error.json" in key}
        assert theirs["end"] == ours["end"] == "ChildFailedError"
        return
    assert ours == theirs


def _everything(result: dict[str, Any]) -> list[str]:
    return [*result["stdout"], *result["stderr"], *(line for lines in result["tree"].values() for line in lines or ())]
