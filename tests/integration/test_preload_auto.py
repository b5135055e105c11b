"""--preload auto: what the script imported last time is imported before it starts again; and no more than that."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_agent.agent.processes.protocol import Emptied, Exited, Fact, Preloaded, PreloadWarning, Started
from integration.test_preload import Job, make

SCRIPT = """
import os, sys
print(*(name in sys.modules for name in ("numpy", "numpy.linalg", "mine", "colorsys")))
import numpy, mine, colorsys
import numpy.polynomial.hermite
"""


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    """The jobs that the test makes, closed at its end."""
    made: list[Job] = []
    yield made
    for job in made:
        job.supervisor.close()


def auto_job(jobs: list[Job], folder: Path, script: str) -> Job:
    (folder / "mine.py").write_text("")
    (folder / "script.py").write_text(script)
    return make(jobs, folder, ["script.py"], ["auto"])


def preloaded(job: Job) -> list[tuple[str, ...]]:
    """The modules of each Preloaded that was reported."""
    return [fact.modules for fact in job.facts if isinstance(fact, Preloaded)]


def facts(job: Job, kind: type[Fact]) -> list[Fact]:
    return [fact for fact in job.facts if isinstance(fact, kind)]


def test_the_next_round_has_what_the_last_one_imported(jobs: list[Job], tmp_path: Path) -> None:
    """Installed packages and their submodules; not the standard library's modules, and never the script's own."""
    job = auto_job(jobs, tmp_path, SCRIPT)
    assert job.run(2) == [0, 0]
    assert [job.output(key)[0] for key in range(2)] == ["False False False False\n"] * 2
    assert job.run(2) == [0, 0]
    assert [job.output(key)[0] for key in range(2)] == ["True True False False\n"] * 2
    assert preloaded(job) == [(), ("numpy",)]
    assert job.forked()


def test_the_imports_of_a_killed_worker_are_known(jobs: list[Job], tmp_path: Path) -> None:
    """The memory in which it recorded them is shared with the zygote."""
    job = auto_job(jobs, tmp_path, SCRIPT + "os.kill(os.getpid(), 9)")
    assert job.run() == [-9]
    assert job.run() == [-9]
    assert job.output()[0].startswith("True")


def test_modules_are_preloaded_while_a_long_round_runs(jobs: list[Job], tmp_path: Path) -> None:
    """The zygote imports them after the first seconds, and the worker goes on."""
    job = auto_job(jobs, tmp_path, SCRIPT + "import time; time.sleep(1000)")
    job.start()
    job.until(Started)
    job.until(Preloaded, 2 - len(preloaded(job)))
    assert preloaded(job) == [(), ("numpy",)]
    job.supervisor.signal(signal.SIGTERM)
    assert [fact.exit_code for fact in job.until(Emptied) if isinstance(fact, Exited)] == [-15]


def test_imports_of_threads_are_recorded_and_those_of_children_are_not(jobs: list[Job], tmp_path: Path) -> None:
    """Imports of many threads at once are each recorded whole; those of a forked child are left out."""
    job = auto_job(
        jobs,
        tmp_path,
        "import os, sys, threading\n"
        "print('numpy' in sys.modules, 'torch' in sys.modules)\n"
        "names = ['numpy', 'numpy.fft', 'numpy.polynomial', 'json.tool', 'xml.dom', 'wave', 'numpy.ma'] * 4\n"
        "def look(name):\n"
        "    for at in range(50):\n"
        "        try: __import__(name if at == 0 else f'nosuch{at}')\n"
        "        except ImportError: pass\n"
        "threads = [threading.Thread(target=look, args=(name,)) for name in names]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
        "if os.fork() == 0:\n"
        "    import torch\n"
        "    os._exit(0)\n"
        "os.wait()\n",
    )
    for _ in range(2):
        assert job.run() == [0]
    assert job.output()[0] == "True False\n"


def test_an_import_after_a_change_of_the_environment_is_left_to_the_script(jobs: list[Job], tmp_path: Path) -> None:
    """A variable that is set before an import is meant for it: that import and those after it are not preloaded."""
    job = auto_job(
        jobs,
        tmp_path,
        "import os, sys\nprint('numpy' in sys.modules, 'sklearn' in sys.modules)\n"
        "import numpy\nos.environ['SKLEARN_SEED'] = '1'\nimport sklearn\n",
    )
    for _ in range(3):
        assert job.run() == [0]
    assert job.output()[0] == "True False\n"
    [warning] = facts(job, PreloadWarning)
    assert "the script sets SKLEARN_SEED before it imports sklearn" in str(warning)


def test_no_trace_of_the_recorder_is_left_after_the_first_seconds(jobs: list[Job], tmp_path: Path) -> None:
    """The finder that records is removed from sys.meta_path, and the zygote's modules are not in sys.modules."""
    job = auto_job(
        jobs,
        tmp_path,
        "import sys, time\ntime.sleep(5.1)\nimport colorsys, wave\n"
        "print([type(each).__module__ for each in sys.meta_path if 'elastic' in type(each).__module__])\n"
        "print([name for name in sys.modules if 'elastic' in name])\n",
    )
    assert job.run() == [0]
    assert job.output()[0] == "[]\n[]\n"


def test_a_module_that_forbids_a_fork_ends_preloading(jobs: list[Job], tmp_path: Path) -> None:
    """After an installed module that starts a thread, workers are started plainly, and the reason is reported."""
    home = tmp_path / "home"
    name = f"python{os.sys.version_info[0]}.{os.sys.version_info[1]}"  # type: ignore[attr-defined]
    packages = home / "lib" / name / "site-packages"
    packages.mkdir(parents=True)
    (packages / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    (tmp_path / "script.py").write_text("import threaded\nprint('ran')\n")
    job = make(jobs, tmp_path, ["script.py"], ["auto"], PYTHONUSERBASE=str(home), PYTHONPATH=str(packages))
    for _ in range(3):
        assert job.run() == [0]
        assert job.output()[0] == "ran\n"
    [reason] = job.reasons()
    assert reason.startswith("after importing threaded, threads run that a fork would lose")
