"""Workers forked with modules imported: for a script the same as a plain start."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import pytest

from support.rigs.preloaded import BOUND_S, CHEAP, Job, make

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
import gc
print(gc.isenabled(), gc.get_threshold())
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
        r"preloaded colorsys in \d+\.\d s, for workers to share: \d+ MiB in memory \(\d+ MiB by PSS\)", done.stderr
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
