"""The library: functions and scripts launched from a program, and the command line inside one."""

from __future__ import annotations

import functools
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from elastic_agent import (
    LaunchConfig,
    NodeAgent,
    RestartForbidden,
    UsageError,
    WorkersFailed,
    launch,
)
from elastic_agent.launcher.cli import main
from elastic_agent.launcher.in_worker.functions import FunctionCall
from support.rigs.embedded import ONE, TWO, failure_of, run_program
from support.workers import calls


def test_a_function_returns_its_results_by_rank() -> None:
    """Each worker calls the function with the given arguments, and the caller gets its result by rank."""
    assert launch(TWO, calls.identity, "a", 7) == {0: (0, 2, ("a", 7)), 1: (1, 2, ("a", 7))}


@pytest.mark.parametrize("function", [functools.partial(calls.identity, "a"), calls.Identity("a")])
def test_what_can_be_called_has_the_same_name_on_all_nodes(function: Any) -> None:
    """A partial and an object are no functions with names of their own, and their `repr` has an address: with that in
    the job's command, two nodes of the same program would be of two jobs."""
    copies = [FunctionCall(pickle.loads(pickle.dumps(function)), (7,)) for _ in range(2)]
    for copy in copies:
        copy.close()
    assert [copy.job for copy in copies] == [copies[0].job] * 2
    assert "0x" not in repr(copies[0].job)
    assert launch(ONE, function, 7) == {0: (0, 1, ("a", 7))}


def test_arguments_of_a_partial_are_part_of_the_jobs_command() -> None:
    """As those beside the function: nodes with different ones are not of one job."""
    made = [FunctionCall(functools.partial(calls.lost, rank=rank), ()) for rank in "01"]
    for call in made:
        call.close()
    assert [call.job for call in made] == [("lost", "rank='0'"), ("lost", "rank='1'")]


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


def test_results_go_to_their_ranks_though_the_function_changes_its_environment() -> None:
    """As one does that launches workers of its own, or divides ranks into groups."""
    assert launch(TWO, calls.lost, "0") == {0: "0", 1: "1"}


def test_a_function_that_ends_its_process_without_a_result_is_named() -> None:
    with pytest.raises(UsageError, match="vanish on rank 0 ended its process with 0 before it returned"):
        launch(ONE, calls.vanish)


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


def test_a_result_that_cannot_be_pickled_ends_the_job_at_once_and_says_why() -> None:
    """The failure names the function and what is wrong with what it returned. No restart: that would call the function
    again from its beginning, hours of training perhaps, to come to the same end."""
    error = failure_of(LaunchConfig(max_restarts=3), calls.return_unpicklable)
    assert isinstance(error, RestartForbidden)
    assert "the result of return_unpicklable cannot be pickled for the agent" in str(error)
    assert "return plain values" in str(error)
    assert error.traceback.endswith("return plain values\n")


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
