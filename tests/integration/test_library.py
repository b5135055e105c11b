"""The library: launching from a program, watching and controlling the agent, and errors that a caller can act on."""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_agent import (
    AgentError,
    AgentEvent,
    HostFailed,
    InternalError,
    LaunchConfig,
    NodeAgent,
    OtherJob,
    Phase,
    Preempted,
    StoppedBySignal,
    UsageError,
    WorkerFailure,
    WorkersFailed,
    launch,
)
from elastic_agent.launcher.cli import main
from elastic_agent.launcher.in_worker.functions import shown
from elastic_agent.rendezvous.memory_store import MemoryStore
from support.desk import WORKER, Desk
from support.harness import ThreadNode
from support.workers import calls

ONE = LaunchConfig(max_restarts=0)
TWO = LaunchConfig(nproc_per_node=2, max_restarts=0)
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@pytest.fixture(autouse=True)
def _private_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Workers use one thread each, and temporary files are in the test's own directory."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.close()


class Embedded:
    """Agents on threads of this process; each is stopped at the end of the test."""

    def __init__(self) -> None:
        self.nodes: list[ThreadNode] = []

    def start(self, config: LaunchConfig, entrypoint: Any, *args: object, name: str = "one", **more: Any) -> ThreadNode:
        node = ThreadNode(name, None)
        node.agent = NodeAgent(config, entrypoint, *args, name=name, tell=node.tell, **more)
        self.nodes.append(node)
        node.start()
        return node


@pytest.fixture
def embedded() -> Iterator[Embedded]:
    made = Embedded()
    yield made
    for node in made.nodes:
        node.end()


def at_desk(desk: Desk, **fields: Any) -> LaunchConfig:
    """A configuration whose workers report to the desk."""
    known = {"max_restarts": 0, "env": {"TEST_NODE": "one", "TEST_DESK": desk.path}}
    return LaunchConfig(**{**known, **fields})


class Watcher:
    """Keeps events as they come."""

    def __init__(self) -> None:
        self.events: list[AgentEvent] = []
        self.threads: set[str] = set()

    def __call__(self, event: AgentEvent) -> None:
        self.events.append(event)
        self.threads.add(threading.current_thread().name)

    @property
    def phases(self) -> list[Phase]:
        """Without repeats."""
        phases = [event.phase for event in self.events]
        return [phase for at, phase in enumerate(phases) if at == 0 or phases[at - 1] is not phase]


def failure_of(config: LaunchConfig, entrypoint: Any, *args: object) -> WorkersFailed:
    with pytest.raises(WorkersFailed) as caught:
        launch(config, entrypoint, *args)
    return caught.value


def run_program(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run a user's program from a file."""
    program = folder / "program.py"
    program.write_text("from elastic_agent import *\nimport os\n" + text)
    return subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=False)


# -- functions --------------------------------------------------------------------------------------------------------


def test_a_function_returns_its_results_by_rank() -> None:
    """Each worker calls the function with the given arguments, and the caller gets its result by rank."""
    assert launch(TWO, calls.identity, "a", 7) == {0: (0, 2, ("a", 7)), 1: (1, 2, ("a", 7))}


def test_local_rank_in_an_argument_is_replaced() -> None:
    """torchrun does so for scripts and functions."""
    assert [result[2] for result in launch(TWO, calls.identity, "at ${local_rank}").values()] == [("at 0",), ("at 1",)]


def test_large_results_come_back_whole() -> None:
    """Results are not limited by what a pipe or a record holds."""
    size = 20_000_000
    assert launch(TWO, calls.large, size) == {0: bytes(size), 1: b"\1" * size}


def test_workers_of_a_function_find_each_other() -> None:
    """A collective over gloo works in a launched function as in a script."""
    assert launch(TWO, calls.add_up) == {0: 3.0, 1: 3.0}


def test_a_restarted_function_returns_what_its_last_round_returned() -> None:
    """A failure within the budget is restarted, and the caller never sees it."""
    assert launch(LaunchConfig(max_restarts=1), calls.fail_once) == {0: ("1", "2")}


@pytest.mark.parametrize("code", [0, None])
def test_a_function_that_exits_0_has_succeeded_and_returned_nothing(code: object) -> None:
    """sys.exit(0) is a success for a script, and so for a function."""
    assert launch(ONE, calls.leave, code) == {0: None}


def test_functions_and_classes_of_the_main_program_can_be_used(tmp_path: Path) -> None:
    """As with multiprocessing, workers import the main program under another name, and can return its classes."""
    done = run_program(
        tmp_path,
        "class Box:\n"
        "    def __init__(self, what): self.what = what\n"
        "def fill(): return Box(os.environ['RANK'])\n"
        "if __name__ == '__main__':\n"
        "    box = launch(LaunchConfig(), fill)[0]\n"
        "    print(type(box) is Box, box.what)\n",
    )
    assert (done.stdout, done.returncode) == ("True 0\n", 0), done.stderr


def test_launching_without_a_main_guard_is_refused_at_once(tmp_path: Path) -> None:
    """A worker imports the main program; one that launches on import must not start workers of workers without end."""
    done = run_program(tmp_path, "def work(): pass\nlaunch(LaunchConfig(max_restarts=0), work)\n")
    assert done.returncode != 0
    assert "launch it below `if __name__ == '__main__':`" in done.stderr.splitlines()[-1]


def test_a_function_typed_at_a_prompt_is_passed_as_code_or_refused(tmp_path: Path) -> None:
    """Workers cannot import a function that is in no file. cloudpickle passes it on; without, the error comes before
    any worker starts."""
    pytest.importorskip("cloudpickle")
    text = "from elastic_agent import *\ndef work(n): return n + 1\nprint(launch(LaunchConfig(), work, 2))\n"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "{0: 3}\n", done.stderr
    text = f"import sys; sys.modules['cloudpickle'] = None\n{text}"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    last = done.stderr.splitlines()[-1]
    assert "UsageError" in last
    assert "work was typed at a prompt" in last


@pytest.mark.parametrize("function", ["work", "os.path.basename"])
@pytest.mark.parametrize("cloudpickle", ["with cloudpickle", "without cloudpickle"])
def test_a_function_from_standard_input_is_passed_as_code_or_refused(
    cloudpickle: str, function: str, tmp_path: Path
) -> None:
    """Workers cannot read it again. Without cloudpickle, which passes it on, that is an error before any worker starts;
    functions of modules can be used either way."""
    hidden = "" if cloudpickle == "with cloudpickle" else "import sys; sys.modules['cloudpickle'] = None\n"
    if not hidden:
        pytest.importorskip("cloudpickle")
    text = (
        f"{hidden}import os\nfrom elastic_agent import *\ndef work(value): return value[-1]\n"
        f"if __name__ == '__main__': print(launch(LaunchConfig(), {function}, 'a/b'))\n"
    )
    (tmp_path / "program").write_text(text)
    with (tmp_path / "program").open() as program:
        done = subprocess.run(
            [sys.executable, "-"], stdin=program, capture_output=True, text=True, timeout=60, check=False
        )
    if function == "work" and hidden:
        last = done.stderr.splitlines()[-1]
        assert "UsageError: work was typed at a prompt or read from standard input" in last
        assert "install cloudpickle" in last
        assert (done.stdout, done.returncode) == ("", 1)
    else:
        assert (done.stdout, done.returncode) == ("{0: 'b'}\n", 0), done.stderr


HANDLES = """
#include <signal.h>
#include <unistd.h>
static void handle(int signum) { if (write(1, "handled\\n", 8)) {} }
__attribute__((constructor)) static void install(void) { signal(SIGTERM, handle); }
"""
"""A library that handles SIGTERM from before Python begins, as runtimes do that embed Python."""


@pytest.mark.parametrize("installed", ["before Python", "after Python"])
def test_a_handler_of_a_c_library_is_put_back(installed: str, tmp_path: Path) -> None:
    """Python cannot name it (`getsignal` returns None, or a stale default), and the program has it after `launch`."""
    env = dict(os.environ)
    if installed == "before Python":
        compiler = shutil.which("cc") or pytest.skip("no C compiler here")
        (tmp_path / "handles.c").write_text(HANDLES)
        library = tmp_path / "handles.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "handles.c"], check=True)
        env["LD_PRELOAD"] = str(library)
    install = "" if env.get("LD_PRELOAD") else "faulthandler.register(signal.SIGTERM, sys.stdout)\n"
    text = (
        "import faulthandler, os, signal, sys\nfrom elastic_agent import *\n"
        f"{install}"
        "os.environ.pop('LD_PRELOAD', None)\n"
        "launch(LaunchConfig(), os.path.basename, 'a/b')\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print('alive', flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-u", "-c", text], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("alive\n")
    assert ("handled\n" if env.get("LD_PRELOAD") else "<module>") in done.stdout


@pytest.mark.parametrize("what", ["function", "argument"])
def test_what_cannot_be_pickled_is_a_usage_error_that_leaves_nothing(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lambda, or a lock as argument, cannot be passed to a worker; the error comes at once, and no file is left."""
    monkeypatch.setitem(sys.modules, "cloudpickle", None)  # which passes lambdas of programs like pytest's workers
    call: tuple[Any, ...] = (lambda: None,) if what == "function" else (calls.identity, threading.Lock())
    with pytest.raises(UsageError, match="cannot be pickled for the workers: "):
        NodeAgent(ONE, *call)
    assert os.listdir(tempfile.gettempdir()) == []


def test_a_result_that_cannot_be_pickled_fails_its_worker_and_says_why() -> None:
    """The failure names the function and what is wrong with what it returned."""
    error = failure_of(ONE, calls.return_unpicklable)
    assert "the result of return_unpicklable cannot be pickled for the agent" in str(error)


def test_a_result_that_cannot_be_unpickled_is_a_usage_error() -> None:
    """The caller's own class failed here, not the job; the error names the function and the rank."""
    with pytest.raises(UsageError, match=r"the result of return_workers_only on rank 0 .* no such place here"):
        launch(ONE, calls.return_workers_only)


# -- scripts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [str, Path])
def test_a_script_is_run_with_its_arguments_and_returns_none_by_rank(kind: type, tmp_path: Path) -> None:
    """A script's path in place of a function: results are there for every rank, and are None."""
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nopen(sys.argv[1] + os.environ['RANK'], 'w').write(sys.argv[2])\n")
    assert launch(TWO, kind(script), tmp_path / "out", 5) == {0: None, 1: None}
    assert [(tmp_path / f"out{rank}").read_text() for rank in (0, 1)] == ["5", "5"]


@pytest.mark.parametrize("entrypoint", ["no/such/script.py", 5])
def test_an_entrypoint_that_is_not_there_is_a_usage_error(entrypoint: Any) -> None:
    """A wrong path, or a value that is neither path nor function, starts no worker."""
    with pytest.raises(UsageError, match=str(entrypoint)):
        launch(ONE, entrypoint)


def test_workers_get_variables_added_to_the_programs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """`env` adds and replaces variables; the program's own environment does not change."""
    monkeypatch.setenv("KEPT", "kept")
    monkeypatch.setenv("REPLACED", "old")
    found = launch(LaunchConfig(env={"REPLACED": "new", "ADDED": "added"}), calls.environment)[0]
    assert [found["KEPT"], found["REPLACED"], found["ADDED"]] == ["kept", "new", "added"]
    assert os.environ["REPLACED"] == "old"
    assert "ADDED" not in os.environ


# -- errors -----------------------------------------------------------------------------------------------------------


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


# -- threads ----------------------------------------------------------------------------------------------------------


def test_a_thread_that_is_not_the_main_one_may_launch_and_touches_no_signal(embedded: Embedded, desk: Desk) -> None:
    """The embedding program's signal handlers stay in place."""
    before = [signal.getsignal(signum) for signum in HANDLED]
    node = embedded.start(at_desk(desk), WORKER)
    worker = desk.wait_world(1)[0]
    assert [signal.getsignal(signum) for signum in HANDLED] == before
    worker.order("exit 0")
    assert node.wait() == 0
    assert node.results == {0: None}


def test_two_launches_at_once_in_one_process_are_separate_jobs(embedded: Embedded, desk: Desk) -> None:
    """One job fails and its workers are stopped; those of the other go on."""
    first = embedded.start(at_desk(desk, env={"TEST_NODE": "first", "TEST_DESK": desk.path}), WORKER, name="first")
    second = embedded.start(at_desk(desk, env={"TEST_NODE": "second", "TEST_DESK": desk.path}), WORKER, name="second")
    desk.wait(lambda: len(desk.workers) == 2, "a worker of each job")
    of = {worker.node: worker for worker in desk.workers}
    of["first"].order("exit 3")
    assert first.wait() == 1
    of["second"].order("ping")
    desk.wait(lambda: "done ping" in of["second"].sent, "an answer of the other job's worker")
    of["second"].order("exit 0")
    assert (second.wait(), second.results) == (0, {0: None})


def test_nodes_embedded_in_one_process_share_a_job(embedded: Embedded) -> None:
    """On a store in memory each node gets the results of its own ranks."""
    store = MemoryStore()
    config = LaunchConfig(min_nodes=2, max_nodes=2, nproc_per_node=2, rdzv_configs={"last_call_quiet": 0.2})
    a = embedded.start(config, calls.identity, name="a", store=store.host())
    b = embedded.start(config, calls.identity, name="b", store=store.guest())
    assert (a.wait(), b.wait()) == (0, 0)
    assert a.results is not None
    assert b.results is not None
    assert sorted(a.results | b.results) == [0, 1, 2, 3]
    assert len(a.results) == len(b.results) == 2
    assert {result[:2] for result in (a.results | b.results).values()} == {(rank, 4) for rank in range(4)}


def test_functions_and_their_plain_arguments_distinguish_jobs(embedded: Embedded, desk: Desk) -> None:
    """Another function, or another plain argument, is another job; the error has its own type and status."""
    store = MemoryStore()
    config = LaunchConfig(min_nodes=2, max_nodes=2, rdzv_configs={"last_call_quiet": 0.2})
    a = embedded.start(config, calls.identity, "one", name="a", store=store.host())
    a.wait_text("waiting for a place")
    for other in ((calls.identity, "two"), (calls.environment,)):
        b = embedded.start(config, *other, name="b", store=store.guest())
        assert b.wait() == 78
        assert isinstance(b.error, OtherJob)
        assert "identity" in str(b.error)
    c = embedded.start(config, calls.identity, "one", name="c", store=store.guest())
    assert (a.wait(), c.wait()) == (0, 0)


def test_a_value_that_looks_different_in_each_process_distinguishes_no_jobs() -> None:
    """Only the type of such an argument counts."""
    assert shown(object()) == shown(object())
    assert shown(1) != shown(2)
    assert shown("1") != shown(1)


def test_an_unused_spare_returns_no_results(embedded: Embedded, desk: Desk) -> None:
    """A node that the job did not need has succeeded, and has no results."""
    store = MemoryStore()
    config = at_desk(desk, rdzv_configs={"last_call_quiet": 0.2})
    a = embedded.start(config, WORKER, name="a", store=store.host())
    world = desk.wait_world(1)
    spare = embedded.start(config, WORKER, name="s", store=store.guest())
    spare.wait_text("spare")
    assert spare.agent.status().spare
    world[0].order("exit 0")
    assert (a.wait(), spare.wait()) == (0, 0)
    assert (a.results, spare.results) == ({0: None}, {})


def test_launching_again_and_again_leaks_nothing() -> None:
    """After the first launch, which may import modules, no launch adds a thread, a descriptor or a private file."""

    def held() -> tuple[int, int, int]:
        private = [name for name in os.listdir(tempfile.gettempdir()) if "_call_" in name]
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(private)

    launch(ONE, calls.identity)
    first = held()
    for _ in range(3):
        launch(ONE, calls.identity)
        failure_of(ONE, calls.leave, 1)
    assert held() == first
    assert first[2] == 0


# -- watching and controlling -----------------------------------------------------------------------------------------


def test_events_come_in_order_as_they_happen_with_their_reason(embedded: Embedded) -> None:
    """A failure, a restart and the end, as a scheduler sees them: on the agent's thread, while it runs."""
    seen = Watcher()
    node = embedded.start(LaunchConfig(max_restarts=1), calls.fail_once, name="n", on_event=seen)
    assert node.wait() == 0
    again = [Phase.JOINING, Phase.WORKING, Phase.STOPPING]
    assert seen.phases == [*again, *again, Phase.FINISHED, Phase.ENDING, Phase.ENDED]
    assert all(event.because and event.happened and event.name == "n" for event in seen.events)
    assert [event.at_s for event in seen.events] == sorted(event.at_s for event in seen.events)
    assert seen.threads == {"test-agent-n"}
    failures = [event for event in seen.events if event.failure is not None]
    assert [(event.happened, event.round) for event in failures] == [("WorkerExited", 1)]
    failure = failures[0].failure
    assert failure is not None
    assert (failure.rank, failure.exit_code) == (0, 1)
    assert failure.message == "RuntimeError: only the first time"
    working = [event for event in seen.events if event.phase is Phase.WORKING]
    assert [(event.round, event.restarts_used) for event in working if event.happened == "RoundSeen"] == [
        (1, 0),
        (2, 1),
    ]
    assert [(member.name, member.nproc) for member in working[0].members] == [("n", 1)]


def test_events_can_be_sent_to_another_process(embedded: Embedded) -> None:
    """A scheduler may collect events of many nodes through a queue."""
    seen = Watcher()
    assert embedded.start(ONE, calls.leave, 4, on_event=seen).wait() == 1
    assert pickle.loads(pickle.dumps(seen.events)) == seen.events
    last = seen.events[-1]
    assert last.phase is Phase.ENDED
    assert [event.failure.exit_code for event in seen.events if event.failure is not None][-1] == 4


def test_a_callback_that_raises_does_not_affect_the_job(caplog: pytest.LogCaptureFixture) -> None:
    """The job goes on, and the log has the callback's traceback."""

    def watch(event: AgentEvent) -> None:
        raise KeyError("a mistake of the scheduler")

    with caplog.at_level(logging.ERROR, logger="elastic_agent"):
        assert launch(ONE, calls.identity, on_event=watch) == {0: (0, 1, ())}
    assert "a mistake of the scheduler" in caplog.text


def test_status_can_be_read_before_the_run_during_it_and_after(embedded: Embedded, desk: Desk) -> None:
    """It is a snapshot, from any thread, and changes nothing."""
    agent = NodeAgent(at_desk(desk, nproc_per_node=2, max_restarts=1), WORKER, name="n")
    assert (agent.status().phase, agent.status().name, agent.status().worker_pids) == (Phase.CONNECTING, "n", {})
    node = ThreadNode("n", agent)
    embedded.nodes.append(node)
    node.start()
    world = desk.wait_world(2)
    world[1].order("exit 3")
    world = desk.wait_world(2, after=1)
    meanwhile = agent.status()
    assert (meanwhile.phase, meanwhile.round, meanwhile.group_rank, meanwhile.world_size) == (Phase.WORKING, 2, 0, 2)
    assert (meanwhile.restarts_used, meanwhile.max_restarts, meanwhile.spare, meanwhile.hosting) == (1, 1, False, True)
    assert meanwhile.worker_pids == {worker.rank: worker.pid for worker in world}
    assert [member.name for member in meanwhile.members] == ["n"]
    assert os.path.isdir(meanwhile.log_dir)
    for worker in world:
        worker.order("exit 0")
    assert node.wait() == 0
    assert (agent.status().phase, agent.status().worker_pids) == (Phase.ENDED, {})


def test_draining_stops_the_workers_within_their_grace_and_raises_preempted(embedded: Embedded, desk: Desk) -> None:
    """A drained node exits 75 with the scheduler's own reason; its workers got SIGTERM."""
    node = embedded.start(at_desk(desk), WORKER)
    world = desk.wait_world(1)
    node.agent.drain("the machine is needed elsewhere")
    assert node.wait() == 75
    assert isinstance(node.error, Preempted)
    assert node.error.node == "one"
    assert "the machine is needed elsewhere" in str(node.error)
    desk.wait_gone(world)


def test_the_others_go_on_without_a_drained_node(embedded: Embedded, desk: Desk) -> None:
    """A drained node announces its departure, so the job re-forms at once, without waiting for a lease."""
    store = MemoryStore()
    config = at_desk(desk, max_nodes=2, rdzv_configs={"last_call_quiet": 0.5, "lease": 60})
    a = embedded.start(config, WORKER, name="a", store=store.host())
    b = embedded.start(config, WORKER, name="b", store=store.guest())
    world = desk.wait_world(2)
    b.agent.drain()
    assert b.wait() == 75
    again = desk.wait_world(1, after=world[0].round)
    again[0].order("exit 0")
    assert a.wait() == 0


def test_stopping_ends_as_sigterm_does_and_a_second_time_at_once(embedded: Embedded, desk: Desk) -> None:
    """StoppedBySignal with status 143; a worker that ignores SIGTERM is killed when asked again."""
    node = embedded.start(at_desk(desk, shutdown_timeout=1000), WORKER)
    worker = desk.wait_world(1)[0]
    worker.order(f"ignore {int(signal.SIGTERM)}")
    desk.wait(lambda: any(said.startswith("done ignore") for said in worker.sent), "the worker to ignore SIGTERM")
    node.agent.stop()
    node.wait_text("stopped by signal 15")
    assert not worker.gone.is_set()
    node.agent.stop()
    assert node.wait() == 143
    assert isinstance(node.error, StoppedBySignal)
    assert node.error.signum == signal.SIGTERM


def test_a_drain_before_the_run_takes_effect() -> None:
    """A scheduler may drain an agent at once, whether or not its thread has called `run`."""
    agent = NodeAgent(ONE, calls.wait_for_ever)
    agent.drain("changed its mind")
    with pytest.raises(Preempted, match="changed its mind"):
        agent.run()


def test_requests_after_the_agent_has_ended_change_nothing() -> None:
    """A caller may drain or stop an agent whose job has just ended."""
    agent = NodeAgent(ONE, calls.identity)
    assert agent.run() == {0: (0, 1, ())}
    agent.drain()
    agent.stop()
    assert agent.status().phase is Phase.ENDED


def test_an_agent_runs_once() -> None:
    """A second run is refused; an agent that is closed instead of run cannot be run."""
    agent = NodeAgent(ONE, calls.identity)
    agent.run()
    with pytest.raises(UsageError, match="make another"):
        agent.run()
    unused = NodeAgent(ONE, calls.identity)
    unused.close()
    with pytest.raises(UsageError, match="make another"):
        unused.run()


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


# -- signals in the main thread ---------------------------------------------------------------------------------------


def test_a_signal_that_the_kernel_delivers_to_another_thread_is_handled() -> None:
    """It wakes the main thread, whose wait it did not interrupt."""
    main = threading.main_thread()

    def interrupt() -> None:
        # By then the main thread waits; if it does not yet, the test passes without having tested anything.
        threading.Event().wait(0.3)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    def began(event: AgentEvent) -> None:
        if event.phase is Phase.WORKING and event.happened == "RoundSeen":
            thread.start()

    assert threading.current_thread() is main
    thread = threading.Thread(target=interrupt)
    with pytest.raises(StoppedBySignal):
        launch(ONE, calls.wait_for_ever, on_event=began)
    thread.join()


def test_ctrl_c_stops_the_job_and_handlers_are_as_before() -> None:
    """In the main thread SIGINT ends the job with status 130, instead of a KeyboardInterrupt in the middle of the
    run."""
    before = [signal.getsignal(signum) for signum in HANDLED]

    def interrupt(event: AgentEvent) -> None:
        if event.phase is Phase.WORKING:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(StoppedBySignal) as caught:
        launch(ONE, calls.wait_for_ever, on_event=interrupt)
    assert (caught.value.signum, caught.value.exit_code) == (signal.SIGINT, 130)
    assert [signal.getsignal(signum) for signum in HANDLED] == before


def test_handlers_are_as_before_after_success_failure_and_misuse() -> None:
    """After any end, Ctrl-C has its previous effect on the program."""
    before = [signal.getsignal(signum) for signum in HANDLED]
    launch(ONE, calls.identity)
    failure_of(ONE, calls.leave, 1)
    with pytest.raises(UsageError):
        launch(ONE, "no/such/script.py")
    assert [signal.getsignal(signum) for signum in HANDLED] == before
    assert signal.set_wakeup_fd(-1) == -1


# -- the command line in a program ------------------------------------------------------------------------------------


def test_the_command_line_in_a_program_returns_none_or_raises(tmp_path: Path) -> None:
    """`main(args)` does not exit the interpreter; the exception has the reason of the end."""
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text("")
    bad.write_text("raise SystemExit(5)")
    assert main(["--standalone", str(good)]) is None  # type: ignore[func-returns-value]
    with pytest.raises(WorkersFailed) as caught:
        main(["--standalone", str(bad)])
    assert (caught.value.worker_exit_code, caught.value.rank, caught.value.told) == (5, 0, True)
    with pytest.raises(UsageError):
        main(["--standalone", "--nproc-per-node", "none", str(good)])


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
