"""--preload auto: what the script imported last time is imported before it starts again; and no more than that."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from elastic_agent.agent.lifecycle.events import WorkersGone
from elastic_agent.agent.processes.protocol import Exited, Fact, Preloaded, PreloadWarning
from support.rigs.preloaded import Job, make

SCRIPT = """
import os, sys
print(*(name in sys.modules for name in ("numpy", "numpy.linalg", "mine", "colorsys")))
import numpy, mine, colorsys
import numpy.polynomial.hermite
"""


def auto_job(jobs: list[Job], folder: Path, script: str, **env: str) -> Job:
    """A job whose script waits to be ended, until a file named `go` is there."""
    (folder / "mine.py").write_text("")
    (folder / "script.py").write_text(f"{script}\nimport os, signal\nif not os.path.exists('go'): signal.pause()\n")
    return make(jobs, folder, ["script.py"], ["auto"], **env)


def learn(job: Job, until: type[Fact] = Preloaded, count: int = 1) -> None:
    """Run the script until what the zygote makes of its imports is reported, then end it. Rounds after that run to the
    end."""
    if not preloaded(job):
        job.until(Preloaded)  # nothing yet
    job.start(count)
    job.until(until)
    job.supervisor.signal(signal.SIGTERM)
    job.until(WorkersGone)
    (job.folder / "go").write_text("")


def preloaded(job: Job) -> list[tuple[str, ...]]:
    """The modules of each Preloaded that was reported."""
    return [fact.modules for fact in job.facts if isinstance(fact, Preloaded)]


def facts(job: Job, kind: type[Fact]) -> list[Fact]:
    return [fact for fact in job.facts if isinstance(fact, kind)]


def test_the_next_round_has_what_the_last_one_imported(jobs: list[Job], tmp_path: Path) -> None:
    """Installed packages and their submodules; not the standard library's modules, and never the script's own."""
    job = auto_job(jobs, tmp_path, SCRIPT)
    learn(job, count=2)
    assert [job.output(key)[0] for key in range(2)] == ["False False False False\n"] * 2
    assert job.run(2) == [0, 0]
    assert [job.output(key)[0] for key in range(2)] == ["True True False False\n"] * 2
    assert preloaded(job) == [(), ("numpy",)]
    assert job.forked()


def test_a_round_that_starts_before_the_last_was_learned_is_not_delayed(jobs: list[Job], tmp_path: Path) -> None:
    """Its workers are forked as they were, with nothing imported; what both rounds imported is learned from the second.
    The memory in which a worker recorded it is shared with the zygote, so a killed one's is known."""
    job = auto_job(jobs, tmp_path, SCRIPT + "if not os.path.exists('second'): os.kill(os.getpid(), 9)")
    assert job.run() == [-9]
    (tmp_path / "second").write_text("")
    (tmp_path / "script.py").write_text(
        "print('numpy' in sys.modules)\n".join(["import sys\n", "import signal; signal.pause()"])
    )
    learn(job)
    assert job.output()[0] == "False\n"
    assert preloaded(job) == [(), ("numpy",)]


def test_modules_are_preloaded_while_a_long_round_runs(jobs: list[Job], tmp_path: Path) -> None:
    """The zygote imports them once the worker has imported nothing for a while, and the worker goes on."""
    job = auto_job(jobs, tmp_path, SCRIPT)
    learn(job)
    assert preloaded(job) == [(), ("numpy",)]
    assert [fact.exit_code for fact in job.facts if isinstance(fact, Exited)] == [-15]


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
    learn(job)
    assert job.run() == [0]
    assert job.output()[0] == "True False\n"


def test_a_copy_of_an_installed_package_is_left_to_the_script(jobs: list[Job], tmp_path: Path) -> None:
    """Which it has put before the installed one: the zygote would import that, and the script get another from then
    on. What is installed alone is preloaded as ever."""
    copy = tmp_path / "vendor" / "yaml"
    copy.mkdir(parents=True)
    (copy / "__init__.py").write_text("from . import part")
    (copy / "part.py").write_text("")
    job = auto_job(
        jobs,
        tmp_path,
        "import os, sys\n"
        "sys.path.insert(0, os.path.abspath('vendor'))\n"
        "print('numpy' in sys.modules)\n"
        "import yaml, numpy\n"
        "print(os.path.relpath(yaml.__file__))\n",
    )
    learn(job)
    assert job.run() == [0]
    assert job.output()[0] == "True\nvendor/yaml/__init__.py\n"


def test_an_import_after_a_change_of_the_environment_is_left_to_the_script(jobs: list[Job], tmp_path: Path) -> None:
    """A variable that is set before an import is meant for it: that import and those after it are not preloaded."""
    job = auto_job(
        jobs,
        tmp_path,
        "import os, sys\nprint('numpy' in sys.modules, 'sklearn' in sys.modules)\n"
        "import numpy\nos.environ['SKLEARN_SEED'] = '1'\nimport sklearn\n",
    )
    learn(job, PreloadWarning)
    assert job.run() == [0]
    assert job.output()[0] == "True False\n"
    [warning] = facts(job, PreloadWarning)
    assert "the script sets SKLEARN_SEED before it imports sklearn" in str(warning)


LIBRARY = {
    # As torch does when its compiler is first asked for the folder of its cache, whoever imports it.
    "settings": "import os\ndef prepare():\n    os.environ['CACHE_FOR_LIBRARY'] = '/cache'\n",
    "reader": "import os\ncache = os.environ.get('CACHE_FOR_LIBRARY')\n",
    "ranked": "import os\nlocal_rank = os.environ.get('LOCAL_RANK')\n",
    "needs_ranked": "import wave, settings, ranked\n",
    "threaded": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n",
}


def installed(folder: Path) -> dict[str, str]:
    """Variables with which the modules of LIBRARY are installed packages."""
    home = folder / "home"
    packages = home / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    for name, text in LIBRARY.items():
        (packages / f"{name}.py").write_text(text)
    return {"PYTHONUSERBASE": str(home), "PYTHONPATH": str(packages)}


def test_what_a_library_sets_does_not_end_learning(jobs: list[Job], tmp_path: Path) -> None:
    """An import after that sees it in the zygote, too, as in the script; and afterwards it is not set there."""
    job = auto_job(
        jobs,
        tmp_path,
        "import os, sys\nprint('reader' in sys.modules, os.environ.get('CACHE_FOR_LIBRARY'))\n"
        "import settings\nsettings.prepare()\nimport reader\nprint(reader.cache)\n",
        **installed(tmp_path),
    )
    learn(job)
    assert job.run() == [0]
    assert job.output()[0] == "True None\n/cache\n"
    assert not facts(job, PreloadWarning)


def test_the_folder_that_torchs_compiler_sets_does_not_end_learning(
    jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch sets TORCHINDUCTOR_CACHE_DIR when it is first asked for the folder of its cache; what the script imports
    after that is learned."""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    job = auto_job(
        jobs,
        tmp_path,
        "import os\nfrom torch._inductor.runtime.cache_dir_utils import cache_dir\n"
        "cache_dir()\nassert 'TORCHINDUCTOR_CACHE_DIR' in os.environ\nimport numpy, reader\n",
        **installed(tmp_path),
    )
    learn(job)
    assert preloaded(job) == [("torch",), ("reader",)]  # numpy came with torch
    assert not [each for each in facts(job, PreloadWarning) if "TORCHINDUCTOR_CACHE_DIR" in str(each)]


def test_only_the_module_that_reads_what_differs_is_left_to_the_workers(jobs: list[Job], tmp_path: Path) -> None:
    """The one that reads LOCAL_RANK and the one that imports it; what that imports besides is preloaded."""
    job = auto_job(
        jobs,
        tmp_path,
        "import sys\nprint(*(name in sys.modules for name in ('numpy', 'settings', 'ranked', 'needs_ranked')))\n"
        "import numpy, needs_ranked, ranked\nprint(ranked.local_rank)\n",
        **installed(tmp_path),
    )
    job.start(LOCAL_RANK="3")
    job.until(PreloadWarning)
    job.until(Preloaded)
    job.supervisor.signal(signal.SIGTERM)
    job.until(WorkersGone)
    (tmp_path / "go").write_text("")
    assert job.run(LOCAL_RANK="5") == [0]
    assert job.output()[0] == "True True False False\n5\n"
    assert "ranked reads LOCAL_RANK when it is imported" in str(facts(job, PreloadWarning))
    assert job.forked()


def test_a_module_that_forbids_a_fork_is_left_to_the_workers(jobs: list[Job], tmp_path: Path) -> None:
    """One that starts a thread is named once; what the script imports besides is learned and preloaded."""
    job = auto_job(
        jobs,
        tmp_path,
        "import threaded\nimport sys\nprint(*(name in sys.modules for name in ('numpy', 'reader')))\nimport numpy\n"
        "import threaded, reader\n",
        **installed(tmp_path),
    )
    job.until(PreloadWarning)
    learn(job)
    assert job.run() == [0]
    assert job.output()[0] == "True True\n"
    [warning] = facts(job, PreloadWarning)
    assert "after importing threaded, threads run that a fork would lose" in str(warning)
    assert "so each worker imports it" in str(warning)
    assert job.forked()


def test_the_first_round_has_what_the_script_imports_before_anything_else(jobs: list[Job], tmp_path: Path) -> None:
    """Its first imports of installed packages, with what it takes from them; functions and constants may stand between,
    and nothing that could mean an import: a call, a variable that is set, a module of the script's own."""
    job = auto_job(
        jobs,
        tmp_path,
        "from __future__ import annotations\nimport sys\nimport reader\nLR = 0.1\n"
        "def shown(*names):\n    print(*(name in sys.modules for name in names))\n"
        "from numpy import polynomial\nshown('reader', 'numpy', 'numpy.polynomial', 'mine', 'settings')\n"
        "import settings\n",
        **installed(tmp_path),
    )
    (tmp_path / "go").write_text("")
    assert job.run(2) == [0, 0]
    assert [job.output(key)[0] for key in range(2)] == ["True True True False False\n"] * 2
    assert preloaded(job) == [("reader", "numpy")]
    assert job.forked()


@pytest.mark.parametrize(
    "before",
    [
        "import mine",
        "os.environ['X'] = '1'",
        "print()",
        "@len\ndef f(): pass",
        "def f(x=print()): pass",
        "from . import x",
    ],
)
def test_an_import_after_anything_else_is_not_made_before_the_first_round(
    before: str, jobs: list[Job], tmp_path: Path
) -> None:
    """The script may mean it for that import."""
    job = auto_job(jobs, tmp_path, f"import os, reader\n{before}\nimport numpy\n", **installed(tmp_path))
    job.until(Preloaded)
    assert preloaded(job) == [("reader",)]


@pytest.mark.parametrize("text", ["import numpy\nthis is no Python", "import no_such_module, numpy", ""])
def test_a_script_that_cannot_be_read_is_left_to_the_worker(text: str, jobs: list[Job], tmp_path: Path) -> None:
    """It says itself what is wrong."""
    job = auto_job(jobs, tmp_path, text)
    job.until(Preloaded)
    assert preloaded(job) == [()]
    assert not job.reasons()
