"""Workers forked with modules imported: for a script the same as a plain start, and never worse than one."""

from __future__ import annotations

import ctypes
import os
import re
import select
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import pytest

from elastic_agent.agent.lifecycle.events import NurseryLost, WorkersGone
from elastic_agent.agent.processes.environment import PER_WORKER
from elastic_agent.agent.processes.protocol import (
    Exited,
    Fact,
    Launch,
    Preloaded,
    PreloadFailed,
    PreloadWarning,
    SpawnFailed,
    Started,
)
from elastic_agent.agent.processes.supervisor import Supervisor

BOUND_S = 110.0
"""The limit for what must happen; only a failing test waits so long. Importing torch takes half a minute at load 16."""
CHEAP = ("json", "random", "multiprocessing", "logging")
"""Modules that are quick to import, for tests in which it does not matter which are preloaded."""


@dataclass
class Job:
    """A supervisor, and the command that its workers run."""

    folder: Path
    arguments: tuple[str, ...]
    preload: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    supervisor: Supervisor = field(default_factory=Supervisor)
    facts: list[Fact] = field(default_factory=list)
    """All facts that were observed."""

    def __post_init__(self) -> None:
        self.supervisor.open()
        base = {name: value for name, value in os.environ.items() if name not in PER_WORKER}
        self.env = {**base, "OMP_NUM_THREADS": "1", **self.env}
        if self.preload:
            self.supervisor.preload(self.preload, PER_WORKER, self.launch(0, {}))

    def launch(self, key: int, env: dict[str, str], out: int | None = None, err: int | None = None) -> Launch:
        argv = (sys.executable, "-u", *self.arguments)
        return Launch(key, argv, {**self.env, **env}, str(self.folder), out, err, bool(self.preload))

    def start(self, count: int = 1, **env: str) -> None:
        """Start workers whose output goes to files."""
        launches = []
        for key in range(count):
            fds = [
                os.open(self.folder / f"{name}{key}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for name in ("out", "err")
            ]
            launches.append(self.launch(key, {"RANK": str(key), **env}, *fds))
        self.supervisor.start(launches)
        for launch in launches:
            os.close(launch.stdout_fd or 0)
            os.close(launch.stderr_fd or 0)

    def until(self, last: type[Fact], count: int = 1) -> list[Fact]:
        """Everything observed until `count` facts of this type were."""
        seen: list[Fact] = []
        poll = select.poll()
        poll.register(self.supervisor.fileno(), select.POLLIN)
        while sum(isinstance(fact, last) for fact in seen) < count:
            assert poll.poll(BOUND_S * 1000), f"no {last.__name__} within {BOUND_S} s after {seen}"
            seen += self.supervisor.observe()
        self.facts += seen
        return seen

    def run(self, count: int = 1, **env: str) -> list[int]:
        """Start workers and wait until nothing of them is left; return their exit codes, by local rank."""
        self.start(count, **env)
        exits = {fact.key: fact.exit_code for fact in self.until(WorkersGone) if isinstance(fact, Exited)}
        return [exits[key] for key in sorted(exits)]

    def output(self, key: int = 0) -> tuple[str, str]:
        """What a worker wrote to stdout and stderr."""
        return (self.folder / f"out{key}").read_text(), (self.folder / f"err{key}").read_text()

    def forked(self) -> bool:
        """Whether no PreloadFailed was reported, so that all workers were forked."""
        return not any(isinstance(fact, PreloadFailed) for fact in self.facts)

    def reasons(self) -> list[str]:
        """Why workers were started plainly, as reported."""
        return [fact.reason for fact in self.facts if isinstance(fact, PreloadFailed)]


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    """The jobs that the test makes, closed at its end."""
    made: list[Job] = []
    yield made
    for job in made:
        job.supervisor.close()


def make(jobs: list[Job], folder: Path, arguments: Sequence[str], preload: Sequence[str] = (), **env: str) -> Job:
    job = Job(folder, tuple(arguments), tuple(preload), env)
    jobs.append(job)
    return job


def zygote_of(job: Job) -> int:
    """The pid of the paused interpreter."""
    for pid in children(job.supervisor._nursery):
        if Path(f"/proc/{pid}/comm").read_text() == "elastic-zygote\n":
            return pid
    raise AssertionError("there is no zygote")


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# -- what a script can see ---------------------------------------------------------------------------------------------
ITSELF = """
import os, resource, signal, sys
kept = dict(vars())
kept.pop("__builtins__")
for name in ("__name__", "__file__", "__package__", "__doc__", "__spec__", "__cached__"):
    print(name, repr(kept.get(name, "unset")))
print(sorted(kept), type(__loader__).__name__)
print(sys.argv, sys.orig_argv, sys.path, sys.flags, sys.warnoptions, sys._xoptions)
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.name, stream.mode, stream.encoding, stream.errors, stream.line_buffering, stream.write_through)
print(os.getcwd(), os.umask(0), os.nice(0), [resource.getrlimit(each) for each in range(16)])
print([(int(each), signal.getsignal(each)) for each in sorted(signal.valid_signals())])
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
print(os.getsid(0) == os.getpgid(0) == os.getpid())
print(open("/proc/self/cmdline").read(), open("/proc/self/comm").read())
lines = ("SigB", "SigI", "SigC", "Threads", "NoNewPrivs", "Cpus_allowed")
print([line for line in open("/proc/self/status") if line.startswith(lines)])
print(sorted(os.listdir("/proc/self/fd")))
print(sorted((k, v) for k, v in os.environ.items() if k != "ELASTIC_AGENT_NURSERY"))
import subprocess
inherited = subprocess.check_output(["env", "-0"]).split(b"\\0")
print(sorted(each for each in inherited if not each.startswith(b"ELASTIC_AGENT_NURSERY")))
print(repr(sys.stdin.read()))
print([finder if isinstance(finder, type) else type(finder) for finder in sys.meta_path], len(sys.path_hooks))
print(sorted(name for name in sys.modules if "elastic" in name or "custom" in name or name in ("agent", "zygote")))
import threading
print(threading.main_thread() is threading.current_thread(), threading.active_count(), threading.main_thread().name)
print(sys.getrecursionlimit(), sys.getswitchinterval(), sys.dont_write_bytecode, len(sys._current_frames()))
import traceback
traceback.print_stack()
"""

SCRIPTS = {
    "itself": ITSELF,
    "uncaught": "def deep(n):\n    return deep(n - 1) if n else 1 / 0\ndeep(3)\n",
    "chained": "try:\n    {}['a']\nexcept KeyError as error:\n    raise RuntimeError('b') from error\n",
    "group": "raise SystemError('odd\\ntext ä')\n",
    "syntax": "print('before')\nx = (1,\n",
    "exit_text": "import sys\nsys.exit('a text, said on stderr')\n",
    "exit_3": "import sys\nsys.exit(3)\n",
    "exit_none": "import sys\nsys.exit()\n",
    "exit_odd": "import sys\nsys.exit(2**40 + 7)\n",
    "exit_at_once": "import atexit, os\natexit.register(print, 'never')\nos._exit(7)\n",
    "abort": "import os\nos.abort()\n",
    "interrupt": "raise KeyboardInterrupt\n",
    "sigint": "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n",
    "sigterm": "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)\n",
    "atexit": (
        "import atexit, threading, time, weakref\n"
        "class Thing:\n    def __del__(self):\n        print('deleted')\n"
        "thing = Thing()\n"
        "atexit.register(print, 'first registered')\natexit.register(print, 'last registered')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread done'))).start()\n"
        "print('main done')\nraise ValueError('and yet')\n"
    ),
    "excepthook": (
        "import sys\nsys.excepthook = lambda kind, error, tb: print('hooked', kind, tb.tb_frame.f_code, tb.tb_next)\n"
        "raise ValueError('seen')\n"
    ),
    "threads": (
        "import threading\ndef work():\n    raise ValueError('in a thread')\n"
        "thread = threading.Thread(target=work, name='mine')\nthread.start()\nthread.join()\n"
        "print([t.name for t in threading.enumerate()])\n"
    ),
    "faulthandler": (
        "import faulthandler, os, signal, sys\nprint(faulthandler.is_enabled())\nfaulthandler.enable()\n"
        "sys.stdout.write('no newline')\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    ),
    "warnings": "import warnings\nwarnings.warn('careful')\nwarnings.warn('old', DeprecationWarning)\n",
    "logging": "import logging\nlogging.warning('said')\nlogging.getLogger('x').error('said too', stack_info=True)\n",
    "pickled": "import pickle\nclass Thing: pass\nprint(pickle.dumps(Thing()))\n",
    "typing": "import sys\nx: int = 1\nprint(__annotations__ if sys.version_info < (3, 14) else '')\n",
    "spawned": (
        "import multiprocessing, sys\ndef double(x):\n    return 2 * x, __name__\n"
        "if __name__ == '__main__':\n"
        "    for how in ('spawn', 'fork', 'forkserver'):\n"
        "        with multiprocessing.get_context(how).Pool(2) as pool:\n"
        "            print(how, pool.map(double, range(3)))\n"
    ),
    "encoding": "# -*- coding: latin-1 -*-\nprint(ascii('\\xe4'))\n",
}


def compare(
    jobs: list[Job], folder: Path, arguments: Sequence[str], preload: Sequence[str] = CHEAP, **env: str
) -> None:
    """Run the command plainly and forked; fail where exit code or output differ."""
    outcomes = []
    for modules in ((), preload):
        job = make(jobs, folder, arguments, modules, **env)
        codes = job.run()
        if modules:
            assert job.forked(), job.reasons()
        # Addresses, pids and thread ids differ in every process.
        texts = [re.sub(r"0x[0-9a-f]{6,}|\b\d{4,}\b(?=\))", "ID", text) for text in job.output()]
        outcomes.append([f"exit codes {codes}", *texts[0].splitlines(), *texts[1].splitlines()])
    plain, forked = outcomes
    assert not [f"{a!r} became {b!r}" for a, b in zip_longest(plain, forked) if a != b]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_as_after_a_plain_start(name: str, jobs: list[Job], tmp_path: Path) -> None:
    """Exit code, stdout and stderr are the same, byte for byte, whatever the script does and however it ends."""
    (tmp_path / "script.py").write_text(SCRIPTS[name], encoding="utf-8")
    compare(jobs, tmp_path, ["script.py", "--flag", "", "ä b"], PYTHONWARNINGS="default", SOME="x\ny")


TARGETS = ("-m pack", "-m pack.deep a", "-m nosuch", "folder", "in.zip a", "./sub/link.py", "nosuch.py")


@pytest.mark.parametrize("target", TARGETS)
def test_modules_folders_and_archives_run_as_after_a_plain_start(target: str, jobs: list[Job], tmp_path: Path) -> None:
    """-m, a folder or a zip with a __main__, a link, and a target that does not exist."""
    for name in ("pack/__main__.py", "pack/deep.py", "folder/__main__.py", "real/script.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(ITSELF)
    (tmp_path / "pack/__init__.py").write_text("print('package imported')\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/link.py").symlink_to(tmp_path / "real/script.py")
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
        archive.writestr("__main__.py", ITSELF)
    compare(jobs, tmp_path, target.split())


VARIABLES = (
    {"PYTHONFAULTHANDLER": "1"},
    {"PYTHONHASHSEED": "7"},
    {"PYTHONIOENCODING": "latin-1"},
    {"PYTHONPATH": "{folder}/mine:"},
    {"PYTHONPATH": ""},
    {"PYTHONOPTIMIZE": "1", "PYTHONDONTWRITEBYTECODE": "1"},
    {"PYTHONSAFEPATH": "1"},
    {"LC_ALL": "C", "PYTHONUTF8": "0"},
)


@pytest.mark.parametrize("variables", VARIABLES, ids=str)
def test_pythons_own_variables_mean_the_same(variables: dict[str, str], jobs: list[Job], tmp_path: Path) -> None:
    """Variables that Python reads when it starts have the worker's values and the same effect."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "script.py").write_text(ITSELF + "print(hash('a'), __debug__)\n" * ("PYTHONHASHSEED" in variables))
    env = {name: value.format(folder=tmp_path) for name, value in variables.items()}
    compare(jobs, tmp_path, ["script.py"], **env)


def test_the_users_own_sitecustomize_runs_as_after_a_plain_start(jobs: list[Job], tmp_path: Path) -> None:
    """A sitecustomize on PYTHONPATH is imported once, under its own name, before the script."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/sitecustomize.py").write_text("import sys\nsys.mine = (__file__, __name__)\n")
    (tmp_path / "script.py").write_text("import sys, sitecustomize\nprint(sys.mine, sitecustomize.__file__)\n" + ITSELF)
    compare(jobs, tmp_path, ["script.py"], PYTHONPATH=str(tmp_path / "mine"))


def test_only_the_preloaded_modules_are_imported(jobs: list[Job], tmp_path: Path) -> None:
    """A script finds only these, what they import, and at most 13 more of the standard library imported."""
    (tmp_path / "script.py").write_text("import sys\nprint(*sorted(sys.modules))\n")
    found = []
    for preload in ((), ("colorsys",)):
        job = make(jobs, tmp_path, ["script.py"], preload)
        assert job.run() == [0]
        found.append(set(job.output()[0].split()))
    ours = {"__future__", "_ctypes", "_signal", "_socket", "_struct", "atexit", "ctypes", "ctypes._endian", "gc"}
    ours |= {"mmap", "select", "struct", "types"}
    assert found[1] - found[0] - {"colorsys"} <= ours


@pytest.mark.timeout(300)
def test_torch_works_as_after_a_plain_start(jobs: list[Job], tmp_path: Path) -> None:
    """Autograd, threads of OpenMP, DataLoader workers by fork and spawn, and a process group of one."""
    (tmp_path / "script.py").write_text(
        "import os, torch, torch.distributed as dist, torch.utils.data as data\n"
        "class Squares(data.Dataset):\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, at): return torch.tensor(at * at)\n"
        "if __name__ == '__main__':\n"
        "    x = torch.arange(4.0, requires_grad=True)\n"
        "    (x * x).sum().backward()\n"
        "    print(x.grad, torch.get_num_threads(), torch.get_num_interop_threads())\n"
        "    torch.set_num_threads(2)\n"
        "    print((torch.ones(300, 300) @ torch.ones(300, 300)).sum())\n"
        "    for how in ('fork', 'spawn'):\n"
        "        loader = data.DataLoader(Squares(), batch_size=4, num_workers=1, multiprocessing_context=how)\n"
        "        print(how, [batch.tolist() for batch in loader])\n"
        "    os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT='0', RANK='0', WORLD_SIZE='1')\n"
        "    dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "    y = torch.ones(2); dist.all_reduce(y); print(y)\n"
        "    dist.destroy_process_group()\n"
        "    print(torch.cuda.is_available(), torch.multiprocessing.get_sharing_strategy())\n"
    )
    compare(jobs, tmp_path, ["script.py"], ["torch"])


def test_each_worker_has_its_own_random_numbers(jobs: list[Job], tmp_path: Path) -> None:
    """random, numpy, torch, uuid, tempfile, and the authkey of a worker's processes differ among workers and rounds."""
    (tmp_path / "script.py").write_text(
        "import multiprocessing, random, numpy, torch, tempfile, uuid\n"
        "print(random.random(), numpy.random.random(), torch.rand(1).item(), torch.initial_seed(), uuid.uuid1(),"
        " next(tempfile._get_candidate_names()), multiprocessing.current_process().authkey.hex())\n"
    )
    job = make(jobs, tmp_path, ["script.py"], ["torch", "numpy", "random", "tempfile", "uuid"])
    drawn = []
    for _ in range(2):
        assert job.run(2) == [0, 0]
        drawn += [job.output(key)[0].split() for key in range(2)]
    assert job.forked()
    for column in zip(*drawn, strict=True):
        assert len(set(column)) == 4, column


def test_only_stdio_is_open_in_each_of_many_workers(jobs: list[Job], tmp_path: Path) -> None:
    """No descriptor of the zygote, or of the workers started with this one, is open, however long the requests are."""
    (tmp_path / "script.py").write_text(
        "import os\nprint(sorted(os.listdir('/proc/self/fd')), len(os.environ['MUCH']))\n"
    )
    job = make(jobs, tmp_path, ["script.py"], CHEAP, **{f"V{at}": "x" * 100_000 for at in range(4)}, MUCH="x" * 100_000)
    for _ in range(3):
        assert job.run(6) == [0] * 6
        assert {job.output(key) for key in range(6)} == {("['0', '1', '2', '3'] 100000\n", "")}
    assert job.forked()


def test_functions_are_called_in_forked_workers(tmp_path: Path) -> None:
    """The library's launch of a function runs a script of ours, whose workers are forked like any."""
    (tmp_path / "job.py").write_text(
        "import sys\nfrom elastic_agent import LaunchConfig, launch\n"
        "def work(x):\n    return x, 'colorsys' in sys.modules\n"
        "if __name__ == '__main__':\n"
        "    print(launch(LaunchConfig(standalone=True, nproc_per_node=2, preload='colorsys'), work, 5))\n"
    )
    command = [sys.executable, "job.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=BOUND_S)
    assert done.stdout == "{0: (5, True), 1: (5, True)}\n", done.stderr


def test_the_command_logs_what_it_preloads(tmp_path: Path) -> None:
    """How much memory is shared at level INFO; why --preload has no effect at every level."""
    (tmp_path / "train.py").write_text("import sys\nprint('colorsys' in sys.modules)\n")
    agent = [sys.executable, "-m", "elastic_agent", "--standalone"]

    def run(*flags: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*agent, *flags], cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True, check=False
        )

    done = run("train.py", PET_PRELOAD="colorsys", LOGLEVEL="INFO")
    assert (done.returncode, done.stdout) == (0, "True\n")
    assert re.search(
        r"preloaded colorsys in 0\.\d s, for workers to share: \d+ MiB in memory \(\d+ MiB by PSS\)", done.stderr
    )
    done = run("--no-python", "--preload", "colorsys", "true")
    assert done.returncode == 0
    assert "--preload has no effect, workers are started plainly: the workers are not scripts" in done.stderr
    done = run("--preload", "colorsys", "--run-path", "train.py")
    assert (done.returncode, done.stdout) == (0, "True\n")


def test_arguments_may_differ_from_worker_to_worker(jobs: list[Job], tmp_path: Path) -> None:
    """The value of ${local_rank} is in sys.argv, although the zygote was started with another argument."""
    (tmp_path / "script.py").write_text("import sys\nprint(sys.argv, sys.orig_argv[2:])\n")
    job = make(jobs, tmp_path, ["script.py", "${local_rank}"], CHEAP)
    job.arguments = ("script.py", "7", "more")
    assert job.run() == [0]
    assert job.output()[0] == "['script.py', '7', 'more'] ['script.py', '7', 'more']\n"
    assert job.forked()


# -- where nothing can be forked: a plain start, and the reason --------------------------------------------------------
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
    "at_exit": "import atexit\n@atexit.register\ndef bye(): pass\n",
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


# -- signals and kills at any time -------------------------------------------------------------------------------------
SLEEPER = "import os, time\nprint('up', os.getppid())\ntime.sleep(1000)\n"
SLOW = "import select\nselect.select([], [], [])\n"
"""A module whose import never ends."""


def test_a_killed_zygote_is_replaced(jobs: list[Job], tmp_path: Path) -> None:
    """Running workers go on, and the next ones are forked from another zygote."""
    (tmp_path / "script.py").write_text(SLEEPER)
    job = make(jobs, tmp_path, ["script.py"], CHEAP)
    job.start(2)
    pids = [fact.pid for fact in job.until(Started, 2) if isinstance(fact, Started)]
    first = zygote_of(job)
    os.kill(first, signal.SIGKILL)
    job.until(Preloaded)
    assert zygote_of(job) != first
    assert set(pids) <= set(children(job.supervisor._nursery))
    job.supervisor.kill()
    assert [fact.exit_code for fact in job.until(WorkersGone) if isinstance(fact, Exited)] == [-9, -9]
    job.start()
    job.until(Started)
    assert job.forked()


def test_workers_of_a_round_are_forked_at_the_same_time(jobs: list[Job], tmp_path: Path) -> None:
    """Each fork is long with torch in memory: none waits until the one before is there."""
    (tmp_path / "slow_fork.py").write_text(
        "import os, time\n"
        "def note():\n"
        f"    with open({str(tmp_path / 'forks')!r}, 'a') as file:\n"
        "        print(os.getpid(), flush=True, file=file)\n"
        "        time.sleep(2)\n"
        "        print(os.getpid(), flush=True, file=file)\n"
        "os.register_at_fork(after_in_child=note)\n"
    )
    (tmp_path / "script.py").write_text("")
    job = make(jobs, tmp_path, ["script.py"], ("slow_fork",), PYTHONPATH=str(tmp_path))
    job.until(Preloaded)
    assert job.run(2) == [0, 0]
    assert job.forked(), job.reasons()
    # Twice the pid of each: one after the other, they would come in pairs.
    pids = (tmp_path / "forks").read_text().split()
    assert pids[::2] != pids[1::2]


def test_a_stopped_zygote_does_not_delay_kill(jobs: list[Job], tmp_path: Path) -> None:
    """kill() ends workers that were requested from a zygote that does not answer."""
    (tmp_path / "script.py").write_text(SLEEPER)
    job = make(jobs, tmp_path, ["script.py"], CHEAP)
    job.until(Preloaded)
    os.kill(zygote_of(job), signal.SIGSTOP)
    job.start(2)
    job.supervisor.kill()
    assert [fact.exit_code for fact in job.until(WorkersGone) if isinstance(fact, Exited)] == [-9, -9]


@pytest.fixture
def hold() -> Iterator[Callable[[int], None]]:
    """A function that keeps a process from being reaped by its parent when it is killed, until the end of the test.

    By ptrace(2), PTRACE_SEIZE: a traced process that was killed is its parent's to wait for only after its tracer has
    waited. To the parent that is what disk wait is: SIGKILL was sent, and the process stays.
    """
    libc, held = ctypes.CDLL(None, use_errno=True), []
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

    def seize(pid: int) -> None:
        if libc.ptrace(0x4206, pid, None, None) != 0:
            pytest.skip(f"this host forbids ptrace: {os.strerror(ctypes.get_errno())}")
        held.append(pid)

    yield seize
    for pid in held:
        os.kill(pid, signal.SIGKILL)
        while not os.WIFEXITED(status := os.waitpid(pid, 0x40000000)[1]) and not os.WIFSIGNALED(status):
            libc.ptrace(7, pid, None, None)


def test_a_zygote_in_disk_wait_does_not_stall_the_nursery(
    jobs: list[Job], tmp_path: Path, hold: Callable[[int], None]
) -> None:
    """Workers that were requested from it are killed, and the next are started, although SIGKILL does not end it."""
    (tmp_path / "script.py").write_text(SLEEPER)
    job = make(jobs, tmp_path, ["script.py"], CHEAP)
    job.until(Preloaded)
    zygote = zygote_of(job)
    hold(zygote)
    os.kill(zygote, signal.SIGSTOP)
    job.start(2)
    job.supervisor.kill()
    assert [fact.exit_code for fact in job.until(WorkersGone) if isinstance(fact, Exited)] == [-9, -9]
    assert zygote in children(job.supervisor._nursery), "it was to be there still"
    job.start()
    job.until(Started)


@pytest.mark.parametrize("how", ["signal", "kill"])
def test_a_worker_that_waits_for_a_slow_import_can_be_stopped(how: str, jobs: list[Job], tmp_path: Path) -> None:
    """An order to stop does not wait for the import: the worker is started plainly, and gets the signal."""
    (tmp_path / "script.py").write_text(SLEEPER)
    (tmp_path / "slow.py").write_text(SLOW)
    job = make(jobs, tmp_path, ["script.py"], ["slow"])
    job.start(2)
    if how == "signal":
        job.supervisor.signal(signal.SIGTERM)
    else:
        job.supervisor.kill()
    exits = [fact.exit_code for fact in job.until(WorkersGone) if isinstance(fact, Exited)]
    assert exits == [-15, -15] if how == "signal" else [-9, -9]


def test_orders_given_while_workers_are_forked_reach_them(jobs: list[Job], tmp_path: Path) -> None:
    """SIGTERM right behind the start ends each of a hundred workers, however far its start has come."""
    (tmp_path / "script.py").write_text(SLEEPER)
    job = make(jobs, tmp_path, ["script.py"], CHEAP)
    job.until(Preloaded)
    for at in range(50):
        job.start(2)
        if at % 2:
            job.until(Started, at % 3)
        job.supervisor.signal(signal.SIGTERM)
        exits = [fact.exit_code for fact in job.until(WorkersGone) if isinstance(fact, Exited)]
        assert exits == [-15, -15]
    assert job.forked()


def test_a_forked_worker_that_cannot_start_is_reported_with_the_reason(jobs: list[Job], tmp_path: Path) -> None:
    """If the working directory was removed meanwhile, SpawnFailed gives the reason, as after a plain start."""
    (tmp_path / "script.py").write_text(SLEEPER)
    here = tmp_path / "here"
    here.mkdir()
    job = make(jobs, here, [str(tmp_path / "script.py")], CHEAP)
    job.until(Preloaded)
    here.rmdir()
    job.supervisor.start([job.launch(0, {"RANK": "0"})])
    facts = job.until(WorkersGone)
    assert [type(fact) for fact in facts] == [SpawnFailed, WorkersGone]
    assert "No such file or directory" in str(facts[0])


@pytest.mark.parametrize("victim", ["nursery", "agent"])
def test_nothing_outlives_the_nursery(victim: str, jobs: list[Job], tmp_path: Path) -> None:
    """The zygote and the workers forked from it end with the nursery, whether it is killed or closed."""
    (tmp_path / "script.py").write_text(SLEEPER)
    job = make(jobs, tmp_path, ["script.py"], CHEAP)
    job.start(2)
    pids = [fact.pid for fact in job.until(Started, 2) if isinstance(fact, Started)] + [zygote_of(job)]
    watched = [os.pidfd_open(pid) for pid in pids]
    if victim == "nursery":
        os.kill(job.supervisor._nursery, signal.SIGKILL)
        job.until(NurseryLost)
    else:
        job.supervisor.close()
    until = time.monotonic() + 1
    for fd in watched:
        assert select.select([fd], [], [], max(0.0, until - time.monotonic()))[0], "alive after a second"
        os.close(fd)


def test_restarts_leave_no_descriptor_and_no_process_behind(jobs: list[Job], tmp_path: Path) -> None:
    """After 100 rounds nursery and zygote have as many descriptors and children as after the first."""
    (tmp_path / "script.py").write_text("")
    job = make(jobs, tmp_path, ["script.py"], CHEAP)
    counts = []
    for _ in range(100):
        assert job.run(2) == [0, 0]
        pids = (job.supervisor._nursery, zygote_of(job))
        counts.append([len(os.listdir(f"/proc/{pid}/fd")) for pid in pids])
    assert counts[0] == counts[-1]
    assert children(job.supervisor._nursery) == [zygote_of(job)]
    assert children(zygote_of(job)) == []
    assert job.forked()


def test_without_preload_there_is_no_zygote(jobs: list[Job], tmp_path: Path) -> None:
    """Then the worker is the nursery's only child."""
    (tmp_path / "script.py").write_text(SLEEPER)
    job = make(jobs, tmp_path, ["script.py"])
    job.start()
    [started] = [fact.pid for fact in job.until(Started) if isinstance(fact, Started)]
    assert children(job.supervisor._nursery) == [started]
