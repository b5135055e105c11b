"""The benchmark harness, with a minimal launcher: it works, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_agent.benchmarks import logs, report, rows
from elastic_agent.benchmarks.goals import Every, Ratio, Samples, Typical, Within, median_ratio
from elastic_agent.benchmarks.launchers import Launcher
from support.source_tree import ROOT

LIMIT_S = 60

# A launcher that starts its workers from a helper process, as elastic-agent does.
LAUNCHER_WITH_HELPER = """\
import os, subprocess, sys
sys.exit(subprocess.run([sys.executable, sys.argv[1], *sys.argv[2:]], start_new_session=True).returncode)
"""

# A script run in a process of its own, since the harness kills all descendants of its process.
HARNESS = """\
import sys, time
from elastic_agent.benchmarks import processes
from elastic_agent.benchmarks.launchers import Launcher
from elastic_agent.benchmarks.measures import one_host
from elastic_agent.benchmarks.run import BenchError, Run

def work():
    with Run(Launcher("b", sys.argv[1])) as run:
{body}
    return 0

sys.exit(processes.guarded(work))
"""


def bench(*args: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmarks' command line."""
    command = [sys.executable, "-m", "benchmarks", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def harness(tmp_path: Path, body: str) -> list[str]:
    """Command of a script with this body inside one run of a launcher that has a helper."""
    launcher, script = tmp_path / "launcher.py", tmp_path / "harness.py"
    launcher.write_text(LAUNCHER_WITH_HELPER)
    script.write_text(HARNESS.format(body="\n".join(" " * 8 + line for line in body.splitlines())))
    template = f"{{python}} {launcher} {{root}}/benchmarks/scripts/floor.py"
    return [sys.executable, str(script), template]


def run_harness(tmp_path: Path, body: str) -> str:
    """The stdout of such a script."""
    done = subprocess.run(
        harness(tmp_path, body), capture_output=True, text=True, timeout=LIMIT_S, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_rows_run_from_launch_to_table(tmp_path: Path) -> None:
    """Each row yields the samples asked for, and they are in the raw file and the table."""
    names = ["launch", "restart", "memory-rss"]
    done = bench(*names, "--a", "floor", "--b", "floor", "--samples", "1", "2", "--out", str(tmp_path))
    assert done.returncode == 1, done.stderr  # a launcher is not four times as fast as itself
    (raw,) = tmp_path.glob("*.jsonl")
    results = report.read(raw)
    for name in names:
        for key, count in (("a", 1), ("b", 2)):
            samples = results.samples(name, key)
            assert len(samples) == count
            assert all(sample is not None and 0 < sample < 30 for sample in samples)
    table = raw.with_suffix(".md").read_text()
    assert all(row.what in table for row in rows.named(names))
    assert bench("--table", str(raw)).stdout == table


@pytest.mark.slow
def test_a_restart_with_gloo_succeeds_when_the_new_world_reduces(tmp_path: Path) -> None:
    """The gloo row reaches its goal with a launcher that gives each world a fresh port."""
    done = bench("gloo-restarts", "--a", "floor", "--b", "floor", "--samples", "0", "1", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1" in done.stdout


def test_a_launcher_that_cannot_start_is_named(tmp_path: Path) -> None:
    """A launcher that starts no worker ends the benchmark with one line that names it."""
    done = bench("launch", "--a", "floor", "--b", "false", "--out", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("benchmarks: launcher b (false) cannot start a worker: ")


def test_an_unknown_row_is_a_usage_error() -> None:
    """The error names it, and the rows that exist."""
    done = bench("no-such-row")
    assert done.returncode == 2
    assert "no-such-row" in done.stderr
    assert "restart-2-nodes" in done.stderr


def test_a_killed_node_has_no_helpers_or_workers_left(tmp_path: Path) -> None:
    """kill_node ends the launcher, its helper and the workers, wherever they are in the process tree."""
    body = """\
agent = run.start(one_host(2), "plain")
workers = run.wait_world(2)
victims = [*run.overhead(agent), *(worker.pid for worker in workers)]
run.kill_node(agent)
run.wait(lambda: True if agent.ended and all(w.ended for w in workers) else None, 10.0, "end of all")
print(len(victims), len(processes.descendants(agent.pid)), agent.code)
"""
    assert run_harness(tmp_path, body).split() == ["4", "0", "-9"]


def test_helpers_count_as_launcher_and_workers_do_not(tmp_path: Path) -> None:
    """A launcher's memory is that of its two processes, which is more than that of the first alone."""
    body = """\
agent = run.start(one_host(2), "plain")
workers = run.wait_world(2)
pids = run.overhead(agent)
assert len(pids) == 2 and not {worker.pid for worker in workers} & set(pids)
assert processes.memory_mib(pids, "Pss") > processes.memory_mib([agent.pid], "Pss") > 0
"""
    run_harness(tmp_path, body)


def test_a_restart_during_which_a_worker_exits_is_no_success_at_the_first_try(tmp_path: Path) -> None:
    """A world that forms only after one of its workers exited does not count with `first_try`."""
    body = """\
since = time.monotonic()
run.start(one_host(2), "plain")
workers = run.wait_world(2)
run.order_exit(workers[0], 1)
run.wait(lambda: workers[0].ended, 10.0, "end of the worker")
try:
    run.wait_world(2, after=since, first_try=True)
except BenchError as error:
    print(error)
"""
    assert run_harness(tmp_path, body) == "a worker of the new world exited\n"


def test_a_killed_harness_leaves_no_process_behind(tmp_path: Path) -> None:
    """When the harness is killed with SIGKILL, its guardian ends launcher, helper and workers."""
    body = """\
import os
agent = run.start(one_host(2), "plain")
workers = run.wait_world(2)
print(os.getpid(), *run.overhead(agent), *(worker.pid for worker in workers), flush=True)
run.pause(600)
"""
    with subprocess.Popen(harness(tmp_path, body), stdout=subprocess.PIPE, text=True) as guardian:
        assert guardian.stdout is not None
        pids = [int(field) for field in guardian.stdout.readline().split()]
        assert len(pids) == 5
        os.kill(pids[0], signal.SIGKILL)
        guardian.wait(LIMIT_S)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_template_begins_with_its_environment() -> None:
    """NAME=VALUE words before the command are environment, those after it are arguments."""
    launcher = Launcher("a", "X=1 PYTHONPATH={root}/lib {python} -m launcher --flag=2")
    assert launcher.env == {"X": "1", "PYTHONPATH": f"{ROOT}/lib"}
    assert launcher.argv == [sys.executable, "-m", "launcher", "--flag=2"]


@pytest.mark.parametrize(
    ("goal", "a", "b", "reached"),
    [
        (Ratio(0.5), [2.0, 2.0], [1.0, 1.0], True),
        (Ratio(0.5), [2.0, 2.0], [1.1, 1.1], False),
        (Ratio(0.5), [2.0, None], [1.0, 1.0], True),
        (Ratio(0.5), [2.0, 2.0], [0.1, None], False),
        (Ratio(0.5), [None], [1.0], None),
        (Ratio(0.5), [2.0], [], None),
        (Typical(0.3, 0.5), [2.0, 2.0], [0.3, 0.2], True),
        (Typical(0.3, 0.5), [2.0, 2.0], [0.4, 0.4], False),
        (Typical(0.3, 0.5), [0.4, 0.4], [0.3, 0.3], False),
        (Typical(0.3, 0.5), [2.0], [0.1, None], False),
        (Typical(0.3, 0.5), [None], [0.1], None),
        (Every(), [], [1.0, 2.0], True),
        (Every(), [], [1.0, None], False),
        (Every(), [1.0], [], None),
        (Within(7.0), [None], [5.0, 7.0], True),
        (Within(7.0), [None], [5.0, 7.1], False),
        (Within(7.0), [None], [5.0, None], False),
    ],
)
def test_whether_a_goal_is_reached(
    goal: Ratio | Typical | Every | Within, a: Samples, b: Samples, reached: bool | None
) -> None:
    """Reached, missed, or not decided by the samples; a missing sample of b is never a success."""
    assert goal.reached(a, b) is reached


def test_a_ratio_is_of_medians_without_missing_samples() -> None:
    """They are no part of a median."""
    assert median_ratio([4.0, None, 4.0], [1.0, 2.0, 9.0]) == 0.5


def test_every_row_has_a_name_of_its_own() -> None:
    """Rows are chosen by name, so each name is unique, and every row can be chosen."""
    names = [row.name for row in (*rows.TABLE, *rows.EXTRA)]
    assert len(set(names)) == len(names)
    assert [row.name for row in rows.named(names)] == names


def test_the_table_counts_and_explains_missing_samples() -> None:
    """A missing sample shows in the count, in the verdict, and with its reason below the table."""
    at = report.Circumstances("today", "bench", {"a": "x", "b": "y"}, "versions", 2)
    runs = [
        report.Result("scale-up", "a", [None], "no world", 0.0),
        report.Result("scale-up", "b", [3.0, 5.0], "", 1.0),
        report.Result("scale-up", "b", [None], "no world", 2.0),
    ]
    table = report.markdown(rows.named([]), report.Results(at, runs))
    assert "| 0 of 1 | 4 s (3 to 5), 2 of 3 | - | all | **no** |" in table
    assert "- scale-up, b: no world (x1)" in table


def test_a_raw_file_without_circumstances_is_refused(tmp_path: Path) -> None:
    """The error names a file that is no raw file of the benchmarks."""
    path = tmp_path / "other.jsonl"
    path.write_text('{"foreign": 1}\n')
    with pytest.raises(ValueError, match=r"other\.jsonl does not begin"):
        report.read(path)


@pytest.mark.parametrize(
    ("harm", "count"),
    [
        (lambda lines: None, 0),
        (lambda lines: lines.pop(3), 1),
        (lambda lines: lines.insert(3, lines.pop(5)), 1),
        (lambda lines: lines.append(lines[0]), 1),
        (lambda lines: lines.__setitem__(2, lines[2][:50] + lines[3]), 2),
        (lambda lines: lines.append(b"something else\n"), 1),
    ],
    ids=["none", "lost", "late", "doubled", "torn", "strange"],
)
def test_damage_to_lines_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[list[bytes]], object], count: int
) -> None:
    """The lines that the rows about logs count, on a console with prefixed lines of two ranks."""
    monkeypatch.setattr(logs, "LINES", 20)
    lines = [b"[default%d]:L%d:%09d:%s\n" % (n % 2, n % 2, n // 2, b"x" * 86) for n in range(20)]
    harm(lines)
    (tmp_path / "console").write_bytes(b"".join(lines))
    assert logs.damaged([tmp_path / "console"], 2) == count
