"""The library: errors that a caller can act on."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from typing import Any

import pytest

from elastic_agent import (
    AgentError,
    HostFailed,
    InternalError,
    LaunchConfig,
    NodeAgent,
    StoppedBySignal,
    UsageError,
    WorkerFailure,
    WorkersFailed,
    launch,
)
from elastic_agent.rendezvous.memory_store import MemoryStore
from support.rigs.embedded import ONE, TWO, Embedded, failure_of
from support.workers import calls


def test_an_exception_in_a_function_is_reported_in_full(embedded: Embedded) -> None:
    """WorkersFailed carries node, rank, exit code, message, traceback and the error file."""
    node = embedded.start(TWO, calls.boom, "first line\nsecond line", name="the-node")
    assert node.wait() == 1
    error = node.error
    assert isinstance(error, WorkersFailed)
    assert error.cause is not None
    assert (error.node, error.rank, error.worker_exit_code, error.exit_code) == ("the-node", 1, 1, 1)
    assert error.cause.message == "ValueError: first line"
    assert "rank 1" in str(error)
    assert "ValueError: first line" in str(error)
    assert "\n" not in str(error)
    assert "in boom\n" in error.traceback
    assert "second line" in error.traceback
    with open(error.error_file) as file:
        assert json.load(file)["message"]["message"] == "ValueError: first line\nsecond line"
    assert error.failures == (error.cause,)


@pytest.mark.parametrize(("call", "arg", "exit_code"), [(calls.leave, 7, 7), (calls.kill_itself, 9, -9)])
def test_a_worker_that_exits_without_an_exception_is_reported_by_its_exit_code(
    call: Any, arg: int, exit_code: int
) -> None:
    """Exit codes are those of `subprocess`, negative for a signal; there is no error file then."""
    error = failure_of(ONE, call, arg)
    assert (error.worker_exit_code, error.error_file, error.traceback) == (exit_code, "", "")


def test_the_failure_of_another_node_names_that_node(embedded: Embedded) -> None:
    """Every node of a failed job gets the same cause, with its node, rank and error file there."""
    store = MemoryStore()
    config = LaunchConfig(min_nodes=2, max_nodes=2, max_restarts=0, rdzv_configs={"last_call_quiet": 0.2})
    a = embedded.start(config, calls.boom, "far away", name="a", store=store.host())
    b = embedded.start(config, calls.boom, "far away", name="b", store=store.guest())
    assert (a.wait(), b.wait()) == (1, 1)
    assert isinstance(a.error, WorkersFailed)
    assert isinstance(b.error, WorkersFailed)
    assert a.error.cause == b.error.cause
    failed, other = (a, b) if a.error.node == "a" else (b, a)
    assert isinstance(failed.error, WorkersFailed)
    assert isinstance(other.error, WorkersFailed)
    assert (other.error.rank, other.error.node, other.error.failures) == (1, failed.name, ())
    assert "far away" in str(other.error)
    assert failed.error.traceback


def every_error() -> list[AgentError]:
    cause = WorkerFailure("n", "h", 3, 1, 99, -9, "said", "/tmp/error.json", "now")
    kinds = [kind for kind in AgentError.__subclasses__() if kind not in (WorkersFailed, StoppedBySignal)]
    return [
        WorkersFailed("failed", cause=cause, failures=(cause,), traceback="stack"),
        WorkersFailed("failed", cause=None, node="n"),
        StoppedBySignal("stopped", signum=15, node="n"),
        *(kind("because", node="n") for kind in kinds),
    ]


@pytest.mark.parametrize("error", every_error(), ids=lambda error: type(error).__name__)
def test_errors_of_the_tree_have_the_same_attributes_and_can_be_pickled(error: AgentError) -> None:
    """A scheduler may read node, rank, exit code and error file of any of them, and send it to another process."""
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert (again.node, again.exit_code) == ("n", error.exit_code)
    caused = isinstance(error, WorkersFailed) and error.cause is not None
    expected = (3, -9, "/tmp/error.json") if caused else (None, None, "")
    assert (again.rank, again.worker_exit_code, again.error_file) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_nodes": 0},
        {"min_nodes": 3, "max_nodes": 2},
        {"nproc_per_node": "many"},
        {"max_restarts": -1},
        {"rdzv_backend": "carrier-pigeon"},
        {"rdzv_endpoint": "host:port:more", "max_nodes": 2},
        {"rdzv_configs": {"no_such_key": 1}},
        {"signals_to_handle": "SIGNOTHING"},
        {"start_method": "fork"},
        {"env": {"A=B": "c"}},
        {"log_dir": __file__},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_wrong_configuration_is_a_usage_error_in_one_line(wrong: dict[str, Any]) -> None:
    """It is found before a worker starts, and no file is left."""
    with pytest.raises(UsageError) as caught:
        launch(LaunchConfig(**wrong), calls.identity)
    assert str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    assert os.listdir(tempfile.gettempdir()) == []


def test_a_host_that_refuses_what_the_agent_needs_is_an_error_of_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without descriptors or processes the caller gets an AgentError in one line, and nothing is left."""

    def refuse(fd: int, grace_s: float, mark: str, descriptors: int, own_directories: tuple[str, ...]) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("elastic_agent.agent.processes.nursery_process.spawn_nursery", refuse)
    with pytest.raises(AgentError, match="Too many open files") as caught:
        launch(ONE, calls.identity)
    assert type(caught.value) is HostFailed


def test_no_room_for_a_function_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full or missing temporary directory is an error before a worker starts, with what to do."""
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/place")
    with pytest.raises(UsageError, match=r"identity cannot be written for the workers: .*/no/such/place.* set TMPDIR"):
        launch(ONE, calls.identity)


def test_an_agent_that_breaks_raises_within_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that is missing is a mistake of elastic-agent: InternalError, which is an AgentError."""
    agent = NodeAgent(ONE, calls.identity)
    call: Any = agent._call
    original = call.result

    def vanish(number: int, rank: int) -> object:
        for name in os.listdir(call._folder):
            os.unlink(os.path.join(call._folder, name))
        return original(number, rank)

    monkeypatch.setattr(call, "result", vanish)
    with pytest.raises(InternalError, match="the result of rank 0 is missing"):
        agent.run()
