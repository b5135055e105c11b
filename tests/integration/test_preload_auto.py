"""--preload auto: what the script imported last time is there before it begins the next; and no more than that."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_agent.agent.processes.protocol import Emptied, Exited, Fact, Note, Preloaded, Started
from integration.test_preload import Job, make

SCRIPT = """
import os, sys
print(*(name in sys.modules for name in ("numpy", "numpy.linalg", "mine", "colorsys")))
import numpy, mine, colorsys
import numpy.polynomial.hermite
"""


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    """Those made by the test, closed at its end."""
    made: list[Job] = []
    yield made
    for job in made:
        job.supervisor.close()


def learner(jobs: list[Job], folder: Path, script: str) -> Job:
    (folder / "mine.py").write_text("")
    (folder / "script.py").write_text(script)
    return make(jobs, folder, ["script.py"], ["auto"])


def learnt(job: Job) -> list[tuple[str, ...]]:
    return [fact.modules for fact in job.facts if isinstance(fact, Preloaded)]


def told(job: Job, kind: type[Fact]) -> list[Fact]:
    return [fact for fact in job.facts if isinstance(fact, kind)]


def test_the_next_round_has_what_the_last_one_imported(jobs: list[Job], tmp_path: Path) -> None:
    """Installed packages and their submodules; not the standard library's modules, and never the script's own."""
    job = learner(jobs, tmp_path, SCRIPT)
    assert job.run(2) == [0, 0]
    assert [job.said(key)[0] for key in range(2)] == ["False False False False\n"] * 2
    assert job.run(2) == [0, 0]
    assert [job.said(key)[0] for key in range(2)] == ["True True False False\n"] * 2
    assert learnt(job) == [(), ("numpy",)]
    assert job.forked()


def test_a_killed_worker_has_taught_all_the_same(jobs: list[Job], tmp_path: Path) -> None:
    """What it noted lies in memory that it shared."""
    job = learner(jobs, tmp_path, SCRIPT + "os.kill(os.getpid(), 9)")
    assert job.run() == [-9]
    assert job.run() == [-9]
    assert job.said()[0].startswith("True")


def test_a_long_round_teaches_while_it_runs(jobs: list[Job], tmp_path: Path) -> None:
    """After the first seconds the modules are imported, and the worker is left alone."""
    job = learner(jobs, tmp_path, SCRIPT + "import time; time.sleep(1000)")
    job.start()
    job.until(Started)
    job.until(Preloaded, 2 - len(learnt(job)))
    assert learnt(job) == [(), ("numpy",)]
    job.supervisor.signal(signal.SIGTERM)
    assert [fact.exit_code for fact in job.until(Emptied) if isinstance(fact, Exited)] == [-15]


def test_children_and_threads_of_the_worker_do_not_confuse_it(jobs: list[Job], tmp_path: Path) -> None:
    """A forked child's imports are not noted, and those of many threads are, each whole."""
    job = learner(
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
    assert job.said()[0] == "True False\n"


def test_an_import_that_a_script_prepares_is_left_to_it(jobs: list[Job], tmp_path: Path) -> None:
    """A variable set before an import is meant for it, so that import and those after it are not taken ahead."""
    job = learner(
        jobs,
        tmp_path,
        "import os, sys\nprint('numpy' in sys.modules, 'sklearn' in sys.modules)\n"
        "import numpy\nos.environ['SKLEARN_SEED'] = '1'\nimport sklearn\n",
    )
    for _ in range(3):
        assert job.run() == [0]
    assert job.said()[0] == "True False\n"
    [note] = told(job, Note)
    assert "the script sets SKLEARN_SEED before it imports sklearn" in str(note)


def test_the_worker_looks_as_ever_when_its_first_seconds_are_over(jobs: list[Job], tmp_path: Path) -> None:
    """The finder that noted is gone from sys.meta_path, and the modules of the zygote were never seen."""
    job = learner(
        jobs,
        tmp_path,
        "import sys, time\ntime.sleep(5.1)\nimport colorsys, wave\n"
        "print([type(each).__module__ for each in sys.meta_path if 'elastic' in type(each).__module__])\n"
        "print([name for name in sys.modules if 'elastic' in name])\n",
    )
    assert job.run() == [0]
    assert job.said()[0] == "[]\n[]\n"


def test_a_module_that_cannot_be_forked_with_ends_it(jobs: list[Job], tmp_path: Path) -> None:
    """An installed module that leaves a thread: workers are started plainly from then on, and the reason is told."""
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
        assert job.said()[0] == "ran\n"
    [reason] = job.reasons()
    assert reason.startswith("after importing threaded, threads run that a fork would lose")
