"""What cannot be forked is started plainly, and only the module to blame is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_agent.agent.processes.protocol import (
    Preloaded,
    PreloadWarning,
)
from support.rigs.preloaded import CHEAP, Job, children, make

CANNOT_FORK = {
    "missing": ("nosuch", "nosuch cannot be imported: ModuleNotFoundError: No module named 'nosuch'"),
    "raises": ("mod_raises", "mod_raises cannot be imported: ValueError: no"),
    "leaves": ("mod_exits", "mod_exits cannot be imported: SystemExit: 3"),
    "thread": ("mod_thread", "after importing mod_thread, threads run that a fork would lose"),
    "file": ("mod_file", "after importing mod_file, descriptors are open that workers would share (/dev/zero)"),
    "child": ("mod_child", "after importing mod_child, a child process runs, of which a forked worker would not be"),
    "rank": ("mod_rank", "mod_rank reads RANK when it is imported, whose value differs between workers"),
    "items": ("mod_items", "mod_items reads the whole environment when it is imported, which differs between workers"),
    "copy": ("mod_copy", "mod_copy reads the whole environment when it is imported, which differs between workers"),
    "bytes": ("mod_bytes", "mod_bytes reads the whole environment when it is imported, which differs between workers"),
    "values": (
        "mod_values",
        "mod_values reads the whole environment when it is imported, which differs between workers",
    ),
    "pattern": ("mod_pattern", "mod_pattern reads the whole environment when it is imported, which differs between"),
    "prefix": ("mod_prefix", "mod_prefix reads the whole environment when it is imported, which differs between"),
    "atexit": ("mod_atexit", "mod_atexit registers rmtree to run at exit when it is imported"),
    "method": ("mod_method", "mod_method registers Thing.close to run at exit when it is imported"),
    "at_exit_file": ("mod_at_exit_file", "mod_at_exit_file makes files and registers bye to run at exit"),
    "finalizer": ("mod_finalizer", "mod_finalizer registers TemporaryDirectory._cleanup to run at exit when it is"),
    "seeds": ("mod_seeds", "mod_seeds seeds random when it is imported"),
    "cwd": (
        "mod_cwd",
        "mod_cwd changes the working directory when it is imported, which a forked worker would not keep",
    ),
    "argv": ("mod_argv", "mod_argv changes sys.argv when it is imported, which a forked worker would not keep"),
    "mask": ("mod_mask", "mod_mask changes the blocked signals when it is imported, which a forked worker would not"),
    "timer": ("mod_timer", "mod_timer changes the timer of alarm() when it is imported, which a forked worker would"),
    "lock": ("mod_lock", "mod_lock makes a lock of multiprocessing when it is imported, which workers would share"),
    "dies": ("mod_dies", "the process that preloads exited with code 9"),
    "killed": ("mod_killed", "the process that preloads was killed by signal 9"),
}
MODULES = {
    "mod_raises": "raise ValueError('no')",
    "mod_exits": "raise SystemExit(3)",
    "mod_thread": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "mod_file": "file = open('/dev/zero')",
    "mod_child": "import subprocess; child = subprocess.Popen(['sleep', '1000'])",
    "mod_rank": "import os; rank = os.environ.get('RANK', '0')",
    "mod_items": "import os; mine = [name for name in os.environ if name.startswith('RA')]",
    "mod_copy": "import os; mine = os.environ.copy()",
    "mod_bytes": "import os; mine = dict(os.environb)",
    "mod_atexit": "import atexit, shutil, tempfile; made = tempfile.mkdtemp(); atexit.register(shutil.rmtree, made)",
    "mod_finalizer": "import tempfile; made = tempfile.TemporaryDirectory()",
    "mod_values": "import os; mine = [value for name, value in os.environ.items() if name.startswith('LOCAL_')]",
    "mod_pattern": "import os, re; mine = [name for name in os.environ if re.match('LOCAL_', name)]",
    "mod_prefix": "import os; mine = {k[:5].lower() for k in os.environ if k.startswith('LOCAL_')}",
    "mod_method": (
        "import atexit\nclass Thing:\n    def close(self): pass\nthing = Thing()\natexit.register(thing.close)"
    ),
    "mod_at_exit_file": (
        "import atexit, os\nopen('lock', 'w').close()\n@atexit.register\ndef bye():\n    os.remove('lock')\n"
    ),
    "mod_seeds": "import random; random.seed(7)",
    "mod_seeds_numpy": "import numpy; numpy.random.seed(7)",
    "mod_cwd": "import os; os.chdir('/')",
    "mod_argv": "import sys; sys.argv = [each for each in sys.argv if each != '--mine'] + ['more']",
    "mod_mask": "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])",
    "mod_timer": "import signal; signal.alarm(3600)",
    "mod_lock": "import multiprocessing; event = multiprocessing.Event()",
    "mod_dies": "import os; os._exit(9)",
    "mod_killed": "import os; os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("name", CANNOT_FORK)
def test_what_cannot_be_forked_is_started_plainly(name: str, jobs: list[Job], tmp_path: Path) -> None:
    """The reason is reported once, and each worker runs with its own environment and arguments."""
    for module, text in MODULES.items():
        (tmp_path / f"{module}.py").write_text(text)
    (tmp_path / "script.py").write_text("import os, sys\nprint('ran', os.environ['RANK'], len(sys.argv))\n")
    module, reason = CANNOT_FORK[name]
    job = make(jobs, tmp_path, ["script.py"], [module])
    for _ in range(2):
        assert job.run(2) == [0, 0]
        assert [job.output(key) for key in range(2)] == [("ran 0 1\n", ""), ("ran 1 1\n", "")]
    [reported] = job.reasons()
    assert reported.startswith(reason), reported
    assert children(job.supervisor._nursery) == [], "the zygote that cannot fork is still there"


HARMLESS = {
    "prefix": "import os\nmine = {k[7:].lower(): v for k, v in os.environ.items() if k.startswith('MODULE_')}",
    "loop": "import os\nfor name in os.environ:\n    if name.startswith(('MODULE_', 'MINE_')): mine = os.environ[name]",
    "equal": "import os\nmine = [name for name in os.environ if name == 'MODULE_X' or 'MODULE' in name]",
    "at_exit": (
        "import atexit, os\n"
        "@atexit.register\n"
        "def bye():\n"
        "    with open(__file__ + '.ended', 'a') as file: print(os.getpid(), file=file)\n"
    ),
    "folder": "import os\nhere = os.getcwd()\nos.chdir('/')\nimport colorsys\nos.chdir(here)\n",
    "lock": "import multiprocessing\nlock = multiprocessing.Lock()\nimport colorsys\ndel lock\n",
    "seeded": "import random\nrng = random.Random(7)\n",
    "jemalloc": (
        "import ctypes, threading\nnamed = threading.Event()\n"
        "def run():\n    ctypes.CDLL(None).prctl(15, b'jemalloc_bg_thd', 0, 0, 0)  # PR_SET_NAME\n"
        "    named.set()\n    threading.Event().wait()\n"
        "threading.Thread(target=run, daemon=True).start()\nnamed.wait()\n"
    ),
}
"""What modules do at import that a fork does not change, and that most packages need one of."""


@pytest.mark.parametrize("name", HARMLESS)
def test_what_a_fork_does_not_change_is_preloaded(name: str, jobs: list[Job], tmp_path: Path) -> None:
    """A search for variables with a prefix, a function that runs at exit, a generator with a seed of its own; and a
    thread that a fork may lose, as jemalloc's, which datasets and monai bring."""
    (tmp_path / "mod.py").write_text(HARMLESS[name])
    (tmp_path / "script.py").write_text("import sys\nprint('mod' in sys.modules)\n")
    job = make(jobs, tmp_path, ["script.py"], ["mod"], MODULE_X="1")
    assert job.run(2) == [0, 0]
    assert [job.output(key)[0] for key in range(2)] == ["True\n"] * 2
    assert job.forked(), job.reasons()


def test_what_a_module_runs_at_exit_runs_once_in_each_worker(jobs: list[Job], tmp_path: Path) -> None:
    """Also where it was registered before the fork; the process that was forked ends without it."""
    (tmp_path / "mod.py").write_text(HARMLESS["at_exit"])
    (tmp_path / "script.py").write_text("import os, mod\nprint(os.getpid())\n")
    # The folder of compiled modules that its import makes is no file of its own.
    job = make(jobs, tmp_path, ["script.py"], ["mod"], PYTHONDONTWRITEBYTECODE="")
    assert job.run(2) == [0, 0]
    assert job.forked(), job.reasons()
    job.supervisor.close()
    ended = (tmp_path / "mod.py.ended").read_text().split()
    assert sorted(ended) == sorted(job.output(key)[0].strip() for key in range(2))


def test_generators_that_a_module_makes_differ_from_worker_to_worker(jobs: list[Job], tmp_path: Path) -> None:
    """Those made without a seed; one with a seed draws the same in all, as after a plain start."""
    (tmp_path / "mod.py").write_text(
        "import random, numpy\n"
        "made = [random.Random(), numpy.random.default_rng(), numpy.random.RandomState()]\n"
        "seeded = [random.Random(7), numpy.random.default_rng(7), numpy.random.RandomState(7)]\n"
    )
    (tmp_path / "script.py").write_text(
        "import mod\nfor each in mod.made + mod.seeded: print(getattr(each, 'random', each)())\n"
    )
    job = make(jobs, tmp_path, ["script.py"], ["mod"])
    drawn = []
    for _ in range(2):
        assert job.run(2) == [0, 0]
        drawn += [job.output(key)[0].split() for key in range(2)]
    assert job.forked(), job.reasons()
    assert [len(set(column)) for column in zip(*drawn, strict=True)] == [4, 4, 4, 1, 1, 1]


# -- where one module is to blame: the others are preloaded ------------------------------------------------------------
LEFT_OUT = {
    "rank": ("mod_rank", "mod_rank reads RANK when it is imported"),
    "copy": ("mod_copy", "mod_copy reads the whole environment"),
    "thread": ("mod_thread", "after importing mod_thread, threads run that a fork would lose"),
    "file": ("mod_file", "after importing mod_file, descriptors are open that workers would share (/dev/zero)"),
    "child": ("mod_child", "after importing mod_child, a child process runs"),
    "finalizer": ("mod_finalizer", "mod_finalizer registers TemporaryDirectory._cleanup to run at exit"),
    "raises": ("mod_raises", "mod_raises cannot be imported: ValueError: no"),
    "missing": ("nosuch", "nosuch cannot be imported: ModuleNotFoundError"),
    "seeds_numpy": ("mod_seeds_numpy", "mod_seeds_numpy seeds numpy.random when it is imported"),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_only_the_module_to_blame_is_left_out(name: str, jobs: list[Job], tmp_path: Path) -> None:
    """It is named, and imported by the workers; what it needs, and what does not need it, is shared."""
    module, reason = LEFT_OUT[name]
    sources = {
        **MODULES,
        "clean": "",
        "behind": "",
        # Imports what is to blame between two modules that are not, and so is left out as well.
        "between": f"import clean\n{'' if module == 'nosuch' else f'import {module}'}\nimport behind",
        # Finds it imported, and holds something of it.
        "later": "import behind\n" + ("" if module in ("nosuch", "mod_raises") else f"import {module} as blamed"),
    }
    for each, text in sources.items():
        (tmp_path / f"{each}.py").write_text(text)
    (tmp_path / "script.py").write_text(
        f"import sys\nnames = 'behind', 'between', 'clean', 'later', '{module}'\n"
        "print(*(name for name in names if name in sys.modules))\n"
    )
    preload = (
        [module, "wave", "clean", "behind"] if module in ("nosuch", "mod_raises") else ["between", "later", "wave"]
    )
    job = make(jobs, tmp_path, ["script.py"], preload)
    if module in ("mod_rank", "mod_copy"):
        assert job.run() == [0]  # what a worker has in its environment shows only now
        job.until(Preloaded, 2 - sum(isinstance(fact, Preloaded) for fact in job.facts))
    else:
        job.until(Preloaded)
    assert job.run(2) == [0, 0]
    assert [job.output(key) for key in range(2)] == [("behind clean\n", "")] * 2
    assert job.forked(), job.reasons()
    [warning] = [str(fact) for fact in job.facts if isinstance(fact, PreloadWarning)]
    assert reason in warning


@pytest.mark.parametrize(
    ("change", "reason"),
    [("LD_LIBRARY_PATH", "LD_LIBRARY_PATH has changed"), ("cwd", "the working directory is")],
)
def test_a_worker_unlike_the_zygote_is_started_plainly(
    change: str, reason: str, jobs: list[Job], tmp_path: Path
) -> None:
    """One with another value of a variable that an import may have read, or with another working directory."""
    (tmp_path / "script.py").write_text("import os\nprint(os.environ.get('LD_LIBRARY_PATH'), os.getcwd())\n")
    job = make(jobs, tmp_path, [str(tmp_path / "script.py")], CHEAP)
    job.until(Preloaded)
    if change == "cwd":
        (tmp_path / "other").mkdir()
        job.folder = tmp_path / "other"
        assert job.run() == [0]
        assert job.output()[0].split()[1] == str(job.folder)
    else:
        assert job.run(LD_LIBRARY_PATH="/elsewhere") == [0]
        assert job.output()[0].split()[0] == "/elsewhere"
    assert [text.startswith(reason) for text in job.reasons()] == [True]
