"""The end of an agent: each step of its clean-up runs, whatever the one before it did."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_agent.agent.errors import HostFailed, in_any_case
from elastic_agent.agent.output.log_dirs import JobLogs
from elastic_agent.agent.processes.file_timer import FileTimer
from elastic_agent.agent.processes.workers import Workers
from elastic_agent.agent.spec import LogSpec, WorkerSpec

STEPS = ["_timer", "supervisor", "_drain", "logs", "_last_lines", "_port", "steps"]
"""What `Workers.close` ends, in its order: attributes with a `close`, and a method."""


def step(done: list[str], name: str, error: BaseException | None = None) -> Callable[[], None]:
    def act() -> None:
        done.append(name)
        if error is not None:
            raise error

    return act


def test_steps_that_raise_nothing_are_all_done() -> None:
    done: list[str] = []
    in_any_case(*(step(done, name) for name in "abc"))
    assert done == ["a", "b", "c"]
    in_any_case()


def test_each_step_is_done_and_the_first_error_is_raised() -> None:
    """What failed first led to what failed later, and is what is reported."""
    done: list[str] = []
    first, later = HostFailed("this host refuses"), OSError(28, "No space left on device")
    with pytest.raises(HostFailed) as caught:
        in_any_case(step(done, "a"), step(done, "b", first), step(done, "c", later), step(done, "d"))
    assert caught.value is first
    assert done == ["a", "b", "c", "d"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()], ids=type)
def test_an_error_that_is_no_exception_stops_no_step_either(error: BaseException) -> None:
    """A second Ctrl-C while workers are ended must not leave their processes alive."""
    done: list[str] = []
    with pytest.raises(type(error)) as caught:
        in_any_case(step(done, "a", error), step(done, "b", ValueError()), step(done, "c"))
    assert caught.value is error
    assert done == ["a", "b", "c"]


@pytest.mark.parametrize(
    "failing", [[], *([name] for name in STEPS), STEPS], ids=lambda names: "+".join(names) or "none"
)
def test_workers_are_closed_step_by_step(failing: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A nursery that does not end keeps no port, log or timer open."""
    workers = Workers(
        WorkerSpec(("true",), "true", "job", lambda: 1),
        "node",
        "host",
        JobLogs(LogSpec(os.devnull), "job"),
        lambda text, routine: None,
        lambda event: None,
    )
    workers._timer = FileTimer(str(tmp_path / "pipe"), str, lambda text, routine: None)
    done: list[str] = []
    for name in STEPS:
        holder, method = (workers, name) if name == "_drain" else (getattr(workers, name), "close")
        _fail_after(monkeypatch, holder, method, done, name, fails=name in failing)
    if failing:
        with pytest.raises(OSError, match=f"^{failing[0]} failed$"):
            workers.close()
    else:
        workers.close()
    assert done == STEPS


def _fail_after(
    monkeypatch: pytest.MonkeyPatch, holder: object, method: str, done: list[str], name: str, *, fails: bool
) -> None:
    """`holder.method` also notes its name, and then raises if it `fails`."""
    real = getattr(holder, method)

    def instead() -> None:
        done.append(name)
        real()
        if fails:
            raise OSError(f"{name} failed")

    monkeypatch.setattr(holder, method, instead)
