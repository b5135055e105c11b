"""--quiet, --verbose and --log-format json: what the agent itself prints; workers' output is as ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from support.network import free_port

RUN_S = 120


def run(folder: Path, script: str, *flags: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    command = [sys.executable, "-m", "elastic_agent", "--log-dir", "/dev/null", *flags, str(folder / "train.py")]
    env = {**os.environ, "NO_COLOR": "1", "LOGLEVEL": "WARNING"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=RUN_S, check=False)


def test_a_quiet_agent_prints_nothing_of_a_job_that_succeeds(tmp_path: Path) -> None:
    """What the worker prints is there."""
    done = run(tmp_path, "import sys; print('out'); print('err', file=sys.stderr)", "-q", "--nproc-per-node", "2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\nout\n", "err\nerr\n")


def test_a_quiet_agent_names_the_addresses_that_only_it_knows(tmp_path: Path) -> None:
    """Without them the flags that ask for these would have no use."""
    done = run(tmp_path, "", "-q", "--page", "--metrics-address", "127.0.0.1:0")
    told = [line.partition("] ")[2].partition("127.0.0.1:")[0] for line in done.stderr.splitlines()]
    assert told == ["metrics are served at http://", "the page of this job: http://"]
    assert run(tmp_path, "", "-q", "--metrics-address", f"127.0.0.1:{free_port()}").stderr == ""


def test_a_quiet_agent_says_what_is_lost(tmp_path: Path) -> None:
    """Of output, and of events, on a disk that is full."""
    (tmp_path / "train.py").write_text("print('out')")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "elastic_agent", "-q", "--log-dir", "/dev/null", str(tmp_path / "train.py")],
            env={**os.environ, "ELASTIC_AGENT_EVENTS": "/dev/full"}, stdout=full, stderr=subprocess.PIPE, text=True,
            timeout=RUN_S, check=False,
        )  # fmt: skip
    assert done.returncode == 0
    assert "cannot write workers' output to the agent's stdout: No space left" in done.stderr
    assert "events are missing from /dev/full" in done.stderr
    assert "exit 0" not in done.stderr


def test_a_quiet_agent_says_why_a_job_failed(tmp_path: Path) -> None:
    """The failure summary and the last line, and no decisions."""
    done = run(tmp_path, "raise SystemExit(3)", "-q", "--max-restarts", "1")
    assert done.returncode == 1
    assert "round 2 begins" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("elastic-agent: exit 1: the job failed: worker failed: rank 0")


def test_a_verbose_agent_prints_routine_decisions(tmp_path: Path) -> None:
    """As with LOGLEVEL=INFO."""
    assert "round 1 begins with 1 node" in run(tmp_path, "", "-v").stderr
    assert "round 1 begins with 1 node" not in run(tmp_path, "").stderr


def test_each_line_is_an_object_where_json_is_asked_for(tmp_path: Path) -> None:
    """Decisions, the failure summary and the end, each with its kind, its time and the node; no colour in any."""
    done = run(tmp_path, "raise SystemExit(3)", "-v", "--log-format", "json", "--max-restarts", "1")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert {line["kind"] for line in lines} == {"routine", "decision", "failure", "end"}
    assert [line["time_s"] for line in lines] == sorted(line["time_s"] for line in lines)
    assert len({line["node"] for line in lines}) == 1
    assert (lines[-1]["kind"], lines[-1]["exit_code"]) == ("end", 1)
    assert "\x1b" not in done.stderr


def test_no_line_of_the_agent_begins_behind_an_unfinished_one_of_a_worker(tmp_path: Path) -> None:
    """A progress bar, as tqdm draws it, of a worker that fails in its midst."""
    script = r"import os; os.write(2, b'\r40%|####'); os.write(2, b'\r50%|#####'); os._exit(3)"
    done = run(tmp_path, script, "--log-format", "json", "--max-restarts", "1")
    assert done.stderr.count("50%|#####\n") == 2
    ours = [json.loads(line) for line in done.stderr.splitlines() if line and not line.endswith("####")]
    assert ours[-1]["kind"] == "end"

    done = run(tmp_path, script)
    assert done.stderr.splitlines()[-1].startswith("elastic-agent: exit 1: ")


def test_a_mistake_in_the_command_line_is_an_object_too(tmp_path: Path) -> None:
    """It is the only line of an agent that does not start."""
    for flags in (
        ["--log-format", "json", "missing.py"],
        ["--log-format=json", "-m", "no_such_module"],
        ["--no-such-flag", "--log_format", "json", "missing.py"],
    ):
        command = [sys.executable, "-m", "elastic_agent", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
        line = json.loads(done.stderr)
        assert (line["kind"], line["exit_code"]) == ("end", done.returncode) == ("end", 2)
