"""What is around the loop: signals and the deadline, what an agent asks, and the log of a run."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from elastic_agent.proto.endings import FORWARDED
from elastic_agent.worker import Every, Run
from elastic_agent.worker.errors import Misused, WrongState
from elastic_agent.worker.frameworks.hugging_face_place import BATCHES, check_batches
from elastic_agent.worker.loop import deadline
from elastic_agent.worker.loop.answers import cached
from elastic_agent.worker.loop.forwarded_signals import Asked
from elastic_agent.worker.loop.log import NAME, RunLog

NEVER = Every(seconds=None)


@pytest.fixture(autouse=True)
def no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (deadline.OURS, deadline.SLURM):
        monkeypatch.delenv(name, raising=False)


def loader_of(run: Run, samples: int = 40) -> Any:
    return run.loader(DataLoader(TensorDataset(torch.arange(samples)), batch_size=4))


def test_no_deadline_is_none(tmp_path: Path) -> None:
    assert Run(tmp_path / "c", every=NEVER).time_left() is None


@pytest.mark.parametrize("name", [deadline.SLURM, deadline.OURS])
def test_the_time_left_is_that_until_the_schedulers_end_of_the_job(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, str(int(time.time()) + 600))
    left_s = Run(tmp_path / "c", every=NEVER).time_left()
    assert left_s is not None
    assert 590 < left_s <= 600


def test_our_variable_takes_precedence_over_slurms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(deadline.SLURM, str(time.time() + 9000))
    monkeypatch.setenv(deadline.OURS, str(time.time() + 60))
    left_s = deadline.Deadline().left_s()
    assert left_s is not None
    assert left_s <= 60


def test_a_deadline_that_is_no_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(deadline.OURS, "tomorrow")
    with pytest.raises(Misused, match="ELASTIC_AGENT_DEADLINE is 'tomorrow': set it to a Unix time in seconds"):
        deadline.Deadline()
    with pytest.raises(Misused, match="stop_before=-1: seconds before the deadline, at least 0"):
        deadline.Deadline(-1)


def trained(run: Run, each_step: Any = lambda: None) -> list[int]:
    seen: list[int] = []
    loader = loader_of(run)
    for _ in run.epochs(1):
        for (batch,) in loader:
            seen += batch.tolist()
            run.step()
            each_step()
    return seen


def test_a_run_saves_and_stops_before_its_deadline_and_goes_on_in_the_next_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(deadline.OURS, str(time.time() + 3600))
    run = Run(tmp_path / "c", every=NEVER, stop_before=60)

    def late() -> None:
        if run.steps == 4:
            monkeypatch.setattr(run._early.deadline, "_at_s", time.time() + 59)

    first = trained(run, late)
    assert run.stopping
    assert first == list(range(16))
    monkeypatch.delenv(deadline.OURS)
    assert first + trained(Run(tmp_path / "c", every=NEVER)) == list(range(40))


def test_without_being_asked_a_run_does_not_stop_before_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(deadline.OURS, str(time.time() - 1))
    assert trained(Run(tmp_path / "c", every=NEVER)) == list(range(40))


def test_a_step_that_would_end_after_the_deadline_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 100 s, 250 s before the deadline, and a margin of 60 s: one more step, not two."""
    now_s = 1000.0
    monkeypatch.setenv(deadline.OURS, "1250")
    monkeypatch.setattr(deadline, "time", SimpleNamespace(time=lambda: now_s, monotonic=lambda: now_s))
    until = deadline.Deadline(60)
    assert not until.stop_now()
    now_s = 1100.0
    assert until.stop_now()


def at(monkeypatch: pytest.MonkeyPatch, now_s: float) -> None:
    monkeypatch.setattr(deadline, "time", SimpleNamespace(time=lambda: now_s, monotonic=lambda: now_s))


def test_the_last_save_begins_early_enough_for_the_longest_one_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks 2 s apart and saves of 20 s, 1,000 s before the deadline: a save and a half, the margin, and a look."""
    monkeypatch.setenv(deadline.OURS, "2000")
    at(monkeypatch, 1000.0)
    until = deadline.Deadline()
    latest = 2000 - 1.5 * 20 - deadline.MARGIN_S - 2
    at(monkeypatch, latest - 3.0)
    assert not until.stop_now(20.0)
    at(monkeypatch, latest - 1.0)
    assert not until.stop_now(20.0)
    at(monkeypatch, latest + 1.0)
    assert until.stop_now(20.0)


def test_who_is_too_late_skips_the_save(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(deadline.OURS, "2000")
    at(monkeypatch, 1000.0)
    until = deadline.Deadline()
    at(monkeypatch, 1974.0)
    assert not until.too_late(20.0)
    at(monkeypatch, 1976.0)
    assert until.too_late(20.0)


def test_before_any_save_was_measured_the_first_thing_near_a_deadline_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(deadline.OURS, "9000")
    at(monkeypatch, 1000.0)
    until = deadline.Deadline()
    assert not until.measure(0.0), "it is hours away"
    at(monkeypatch, 8000.0)
    assert until.measure(0.0)
    assert not until.measure(3.0), "one was measured"


def test_a_run_may_be_told_not_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(deadline.OURS, str(time.time() + 1))
    until = deadline.Deadline(stop_before=False)
    assert not until.stop_now(20.0)
    assert not until.too_late(20.0)


def test_a_save_that_is_too_late_is_not_begun_and_the_log_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint before it stands, and the next run goes on from there."""
    monkeypatch.setenv(deadline.OURS, str(time.time() + 3600))
    run = Run(tmp_path / "c", every=Every(seconds=None, steps=2))

    def late() -> None:
        if run.steps == 5:
            monkeypatch.setattr(run._early.deadline, "_at_s", time.time() + 0.001)

    trained(run, late)
    assert run.stopping
    assert "no checkpoint of step 5: " in caplog.text
    monkeypatch.delenv(deadline.OURS)
    assert Run(tmp_path / "c", every=NEVER).steps == 4


@pytest.fixture
def usr1() -> Iterator[int]:
    """SIGUSR1, whose handling is as before at the end."""
    before = signal.getsignal(signal.SIGUSR1)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


def test_several_copies_of_a_forwarded_signal_are_one_request_and_a_scripts_own_handler_stays(usr1: int) -> None:
    environment = {FORWARDED: str(int(usr1))}
    asked = Asked(environment)
    assert asked.taken == [usr1]
    assert asked.first == 0
    for _ in range(3):
        os.kill(os.getpid(), usr1)
    assert asked.first == usr1
    signal.signal(usr1, lambda *_: None)
    assert Asked(environment).taken == []


LATE = """
import os, signal, sys
from elastic_agent.worker.loop.forwarded_signals import Asked
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGUSR1):
        kill(pid, number)
late = Late()
asked = Asked({"ELASTIC_AGENT_FORWARD_SIGNALS": "10"})
os.kill(os.getpid(), signal.SIGUSR1)
asked.drop()
sys.exit(75)
"""


def test_a_copy_of_a_forwarded_signal_that_comes_while_the_interpreter_ends_is_dropped() -> None:
    """Python has removed its handlers by then; the kernel's default for that signal would end the process."""
    assert subprocess.run([sys.executable, "-c", LATE], check=False).returncode == 75


def test_under_an_agent_a_run_that_was_stopped_exits_with_75_behind_its_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, usr1: int
) -> None:
    """What follows the loop belongs to a training that is over, and further copies of the signal are dropped. Without
    an agent the script goes on."""
    alone = Run(tmp_path / "alone", every=NEVER)
    assert trained(alone, alone.stop) == list(range(4))
    monkeypatch.setenv("ELASTIC_AGENT_ROUND", "1")
    monkeypatch.setenv(FORWARDED, str(int(usr1)))
    run = Run(tmp_path / "c", every=NEVER)
    with pytest.raises(SystemExit) as ended:
        trained(run, lambda: os.kill(os.getpid(), usr1) if run.steps == 3 else None)
    assert (ended.value.code, run.steps) == (75, 3)
    assert signal.getsignal(usr1) is signal.SIG_IGN


def test_without_an_agent_each_call_does_what_is_sensible_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints are made, the loop is left, a training that is complete is marked, and nothing exits."""
    for name in [name for name in os.environ if name.startswith("ELASTIC_AGENT_")]:
        monkeypatch.delenv(name)
    run = Run(tmp_path / "c", every=NEVER)

    def calls() -> None:
        assert run.time_left() is None
        if run.steps == 2:
            run.save("halfway")
        with run.section("evaluation"):
            pass
        if run.steps == 4:
            run.stop()

    assert trained(run, calls) == list(range(16))
    assert run.stopping
    run.complete()
    assert not (tmp_path / "c" / "complete.json").exists()
    manifests = [json.loads(path.read_text()) for path in sorted((tmp_path / "c").glob("step-*/manifest.json"))]
    assert [(each["step"], each.get("label", "")) for each in manifests] == [(2, "halfway"), (4, "")]
    run = Run(tmp_path / "c", every=NEVER)
    assert trained(run) == list(range(16, 40))
    run.complete()
    assert json.loads((tmp_path / "c" / "complete.json").read_text())["step"] == 10


def test_memory_of_a_gpu_that_torch_holds_and_does_not_use_is_what_empty_cache_gives_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By UUID, which NVML knows too; none where torch is not imported, or has not begun to use a GPU."""
    held = {0: (10 << 30, 7 << 30), 1: (4 << 30, 4 << 30)}
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: len(held),
        memory_reserved=lambda device: held[device][0],
        memory_allocated=lambda device: held[device][1],
        get_device_properties=lambda device: SimpleNamespace(uuid=f"uuid-{device}"),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert cached() == {"uuid-0": 3 << 30, "uuid-1": 0}
    cuda.is_initialized = lambda: False
    assert cached() == {}
    for without in (SimpleNamespace(), None):
        monkeypatch.setitem(sys.modules, "torch", without)
        assert cached() == {}


def test_the_log_is_rank_0s_and_others_say_warnings_with_their_rank(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for rank in (0, 1):
        RunLog(rank).info("information")
        RunLog(rank).warning("warning")
    assert caplog.messages == ["information", "warning", "rank 1: warning"]


def test_every_rank_logs_where_it_is_asked_to(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for rank in (0, 1):
        RunLog(rank).every_rank.info("epoch %d", 3)
    assert caplog.messages == ["rank 0: epoch 3", "rank 1: epoch 3"]


def test_a_script_that_has_not_configured_logging_sees_the_log_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger(NAME), "level", logging.NOTSET)
    logging.getLogger(NAME).manager._clear_cache()  # type: ignore[attr-defined]
    RunLog(0).info("information")
    RunLog(1).info("information")
    assert capsys.readouterr().err == "information\n"


def test_a_log_whose_console_is_closed_ends_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with open(os.devnull, "w") as console:
        monkeypatch.setattr(sys, "stderr", console)
    RunLog(0).warning("a console that is closed")


def test_a_trainers_checkpoint_of_batches_of_another_size_is_refused(tmp_path: Path) -> None:
    """Hugging Face's Trainer counts steps: with other batches they are another place. What to give is said."""
    (tmp_path / BATCHES).write_text('{"global_batch": 8, "accumulated": 1}')
    check_batches(tmp_path, {"global_batch": 8, "accumulated": 1}, 2)
    with pytest.raises(WrongState, match="give per_device_train_batch_size=8 and"):
        check_batches(tmp_path, {"global_batch": 4, "accumulated": 1}, 1)
    with pytest.raises(WrongState, match="give another number of ranks, which divides it, and"):
        check_batches(tmp_path, {"global_batch": 12, "accumulated": 1}, 3)
    check_batches(tmp_path / "of another tool", {"global_batch": 4, "accumulated": 1}, 1)
