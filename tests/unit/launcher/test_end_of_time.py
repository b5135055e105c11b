"""Until when a job's time lasts: flags, variables and what SLURM prints; and the grace that fits below its own."""

from __future__ import annotations

import os
import signal
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from elastic_agent.agent.errors import UsageError
from elastic_agent.agent.lifecycle import on_request
from elastic_agent.agent.lifecycle.events import SignalReceived
from elastic_agent.agent.lifecycle.state import Node, Phase, RoundTally
from elastic_agent.agent.rules import node_rules
from elastic_agent.agent.spec import RendezvousSpec
from elastic_agent.control.commands import NoReading
from elastic_agent.launcher.preemption import end_of_time
from elastic_agent.launcher.preemption.end_of_time import DEADLINE, SLURM_END, SLURM_JOB, TERMINATION_GRACE
from support.rigs.plans import planned

JOB = """JobId=8841 JobName=llama
   StartTime=2026-11-22T09:00:00 EndTime=2026-11-22T17:00:00 Deadline=N/A
"""
"""From SLURM 22.05, cut."""
CONFIG = """Configuration data as of 2026-11-22T16:00:00
KeepAliveTime           = SYSTEM_DEFAULT
KillOnBadExit           = 0
KillWait                = 30 sec
"""
END_S = datetime.fromisoformat("2026-11-22T17:00:00").timestamp()


def slurm(argv: list[str], limit_s: float) -> str:
    return {"job": JOB, "config": CONFIG}[argv[2]]


def test_the_earliest_of_all_ends_counts() -> None:
    env = {DEADLINE: "5000", SLURM_END: "4000"}
    assert end_of_time.earliest(None, "", {}, 1000.0) is None
    assert end_of_time.earliest(None, "", env, 1000.0) == 4000
    assert end_of_time.earliest(10, "3000", env, 1000.0) == 1600
    assert end_of_time.earliest(100, "3000", env, 1000.0) == 3000


def test_an_end_that_has_passed_hides_none_that_comes() -> None:
    """The variable may be of the job before; with that alone the workers have no end, and somebody is told."""
    assert end_of_time.earliest(None, "500", {DEADLINE: "900", SLURM_END: "4000"}, 1000.0) == 4000
    assert end_of_time.earliest(0, "", {DEADLINE: "900"}, 1000.0) == 900
    told: list[tuple[str, bool]] = []
    passed = planned(deadline="3600").workers
    end_of_time.fitted(passed, {}, lambda text, routine: told.append((text, routine)), grace_given=True, now_s=10_800.0)
    [(text, routine)] = told
    assert text.startswith(
        "the job's time has ended 2 h 0 min ago, so no worker saves before an end; correct --deadline"
    )
    assert not routine


def test_a_deadline_is_unix_time_or_a_time_of_day() -> None:
    assert end_of_time.unix_time("--deadline", "1795366800") == 1795366800
    assert end_of_time.unix_time("--deadline", "2026-11-22T17:00:00Z") == 1795366800
    assert end_of_time.unix_time("--deadline", "2026-11-22T17:00:00") == END_S


@pytest.mark.parametrize("value", ["tomorrow", "-1", "nan", "1e300"])
def test_a_deadline_that_is_no_time_is_refused_in_one_line(value: str) -> None:
    with pytest.raises(UsageError, match=f"--deadline is '{value}', "):
        end_of_time.unix_time("--deadline", value)


def test_what_slurm_prints_is_read() -> None:
    told = end_of_time.ask_slurm({SLURM_JOB: "8841"}, slurm)
    assert (told.end_s, told.kill_wait_s, told.trouble) == (END_S, 30.0, "")
    assert end_of_time.read_end("JobId=8841 EndTime=Unknown Deadline=N/A", "8841") is None
    assert end_of_time.read_kill_wait("KillWait = INFINITE") is None


def test_a_controller_that_does_not_answer_is_said_and_ends_nothing() -> None:
    def silent(argv: list[str], limit_s: float) -> str:
        raise NoReading("no answer from scontrol in 2 s")

    told = end_of_time.ask_slurm({SLURM_JOB: "8841"}, silent)
    assert told.end_s is None
    assert told.trouble == "until when SLURM's job 8841 may run is not known: no answer from scontrol in 2 s"


def test_an_element_with_the_id_of_its_array_has_an_end_of_its_own() -> None:
    """scontrol prints all elements for that id."""
    other = JOB.replace("JobId=8841 ", "JobId=8840 ArrayJobId=8841 ArrayTaskId=1 ").replace("T17", "T11")
    text = f"{other}\n{JOB.replace('JobId=8841 ', 'JobId=8841 ArrayJobId=8841 ArrayTaskId=2 ')}\n"
    assert end_of_time.read_end(text, "8841") == END_S
    assert end_of_time.read_end(other, "8841") is None
    asked: list[list[str]] = []

    def run(argv: list[str], limit_s: float) -> str:
        asked.append(argv)
        return text

    element = {SLURM_JOB: "8841", "SLURM_ARRAY_JOB_ID": "8841", "SLURM_ARRAY_TASK_ID": "2"}
    assert end_of_time.ask_slurm(element, run, wait=False).end_s == END_S
    assert asked == [["scontrol", "show", "job", "8841_2"]]


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that prints times as its environment says; it notes what it was asked."""
    script = tmp_path / "scontrol"
    script.write_text(
        f"""#!/bin/sh
echo "$2" >> {tmp_path}/asked
test "$2" = config && echo "KillWait = 20 sec" && exit
test "$SLURM_TIME_FORMAT" = standard && end=2026-11-22T17:00:00
echo "JobId=8841 EndTime=${{end:-17:00 today}}"
"""
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    return tmp_path / "asked"


def test_the_form_of_times_that_a_user_likes_hides_no_end(scontrol: Path) -> None:
    assert fitted({SLURM_JOB: "8841"}).base_env[DEADLINE] == f"{END_S:.0f}"
    assert scontrol.read_text() == "job\nconfig\n"


def test_the_grace_fits_below_slurms_own_also_where_the_end_is_known(scontrol: Path) -> None:
    """Only what is not known is asked."""
    workers = planned(deadline="1795366800").workers
    env = {SLURM_JOB: "8841"}
    made = end_of_time.fitted(workers, env, lambda text, routine: None, grace_given=False, now_s=0.0)
    assert made.grace_s == end_of_time.grace_below(20)
    assert scontrol.read_text() == "config\n"
    end_of_time.fitted(workers, env, lambda text, routine: None, grace_given=True, now_s=0.0)
    assert scontrol.read_text() == "config\n"


def fitted(env: dict[str, str], *, grace_given: bool = False) -> Any:
    workers = planned().workers
    return end_of_time.fitted(workers, env, lambda text, routine: None, grace_given=grace_given, now_s=0.0)


@pytest.mark.parametrize("known_s", [8, 20, 30, 45, 120])
def test_saving_and_stopping_fit_into_what_the_scheduler_leaves(known_s: int) -> None:
    """Workers get half of the grace to save first, or all that is left, and the agent some seconds beyond."""
    made = fitted({TERMINATION_GRACE: str(known_s)})
    assert made.grace_s / 2 <= made.term_settle_s
    assert made.term_settle_s + made.grace_s + end_of_time.MARGIN_S <= known_s
    assert made.grace_s <= end_of_time.DEFAULT_GRACE_S


@pytest.mark.parametrize(
    ("env", "grace_given", "settle_s"),
    [({TERMINATION_GRACE: "120"}, False, 85.0), ({TERMINATION_GRACE: "120"}, True, 85.0), ({}, False, 15.0)],
)
def test_a_save_at_sigterm_may_take_what_the_scheduler_leaves(
    env: dict[str, str], grace_given: bool, settle_s: float
) -> None:
    """A pod with two minutes must not lose a training for a save of twenty seconds."""
    rules = node_rules("a", "a", fitted(env, grace_given=grace_given), RendezvousSpec())
    working = Node(Phase.WORKING, tally=RoundTally(round=1))
    node, _ = on_request.on_signalled(working, SignalReceived(signal.SIGTERM), 100.0, rules)
    assert node.leave_at == 100.0 + min(60.0, settle_s)


def test_a_grace_that_the_user_chose_stays() -> None:
    assert fitted({TERMINATION_GRACE: "20"}, grace_given=True).grace_s == planned().workers.grace_s


def test_a_termination_grace_that_is_no_time_is_refused() -> None:
    with pytest.raises(UsageError, match="ELASTIC_AGENT_TERMINATION_GRACE is 'half a minute'; give seconds"):
        fitted({TERMINATION_GRACE: "half a minute"})


def test_without_a_scheduler_nobody_is_asked() -> None:
    assert not end_of_time.says_something({}, {})
    assert end_of_time.says_something({SLURM_JOB: "1"}, {})


def test_the_deadline_of_the_flags_reaches_the_workers() -> None:
    assert DEADLINE not in planned().workers.base_env
    assert planned(deadline="1795366800").workers.base_env[DEADLINE] == "1795366800"
    before_s = time.time()
    at_s = float(planned(exit_duration_in_mins=10).workers.base_env[DEADLINE])
    assert before_s + 600 - 1 <= at_s <= time.time() + 600 + 1
    assert planned(forward_signals="USR1,USR2").workers.base_env["ELASTIC_AGENT_FORWARD_SIGNALS"] == "10,12"


def test_a_cloud_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match=r"spot_notices is 'ibm'.*give one of aws, gcp, azure"):
        planned(spot_notices="ibm")
