"""--preload auto while it learns: the zygote goes on forking, whatever becomes of the imports beside it."""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path

from elastic_agent.agent.lifecycle.events import WorkersGone
from elastic_agent.agent.processes.protocol import Preloaded, PreloadWarning, Started
from support.rigs.preloaded import BOUND_S, Job, children, make, zygote_of

IN_ZYGOTE = "open('/proc/self/comm').read() == 'elastic-zygote\\n'"
PACKAGES = {
    # Is about to import for ever, beside a process of its own, when it says so.
    "slow": (
        f"import os\nif {IN_ZYGOTE} and os.path.exists(os.environ['AT']):\n"
        "    import select, subprocess\n    child = subprocess.Popen(['sleep', '1000'])\n"
        "    os.close(os.open(os.environ['AT'], os.O_WRONLY))\n    select.select([], [], [])\n"
    ),
    "dies": f"import os\nif {IN_ZYGOTE}:\n    os._exit(9)\n",
    "threaded": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n",
    "first": "",
    "last": "",
}
SCRIPT = """
import first
import os, signal, sys
forked = b"ELASTIC_AGENT_ZYGOTE" in open("/proc/self/environ", "rb").read()
print(forked, *(name for name in ("slow", "dies", "threaded", "last") if name in sys.modules))
import {imports}
if not os.path.exists("go"): signal.pause()
"""


def learning(jobs: list[Job], folder: Path, imports: str) -> Job:
    """A job whose zygote has imported what its script imports first, and whose workers import these, and wait."""
    packages = folder / "home" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    for name, text in PACKAGES.items():
        (packages / f"{name}.py").write_text(text)
    (folder / "script.py").write_text(SCRIPT.format(imports=imports))
    env = {"PYTHONUSERBASE": str(folder / "home"), "PYTHONPATH": str(packages), "AT": str(folder / "at")}
    job = make(jobs, folder, ["script.py"], ["auto"], **env)
    job.until(Preloaded)
    return job


def stop(job: Job) -> None:
    job.supervisor.signal(signal.SIGTERM)
    job.until(WorkersGone)


def readable(fd: int) -> bool:
    """Whether something happens to this descriptor in time; it is closed then."""
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLHUP)
    try:
        return bool(poll.poll(BOUND_S * 1000))
    finally:
        os.close(fd)


def test_a_restart_while_the_zygote_learns_is_forked_and_shares_no_processor(jobs: list[Job], tmp_path: Path) -> None:
    """Its workers have what was there. What imports is killed, with what it has started, and imports in the next
    round."""
    os.mkfifo(tmp_path / "at")
    at = os.open(tmp_path / "at", os.O_RDONLY | os.O_NONBLOCK)
    job = learning(jobs, tmp_path, "slow, last")
    job.start(2)
    assert readable(at), "nothing was learned"
    zygote = zygote_of(job)
    [imports] = children(zygote)
    family = [os.pidfd_open(pid) for pid in (imports, *children(imports))]
    (tmp_path / "at").unlink()
    stop(job)
    job.start(2)
    job.until(Started, 2)
    assert all(map(readable, family)), "what was importing goes on"
    job.until(Preloaded)
    assert job.output()[0] == "True\n"
    stop(job)
    (tmp_path / "go").write_text("")
    assert job.run(2) == [0, 0]
    assert job.output()[0] == "True slow last\n"
    assert zygote_of(job) == zygote
    assert not job.reasons()


def test_a_module_that_forbids_a_fork_does_not_cost_the_zygote(jobs: list[Job], tmp_path: Path) -> None:
    """What it has can be forked all the time; what else was learned is imported once more, without that module."""
    job = learning(jobs, tmp_path, "threaded, last")
    zygote = zygote_of(job)
    job.start()
    job.until(Preloaded)
    assert zygote_of(job) == zygote
    stop(job)
    (tmp_path / "go").write_text("")
    assert job.run() == [0]
    assert job.output()[0] == "True last\n"
    [warning] = [fact.text for fact in job.facts if isinstance(fact, PreloadWarning)]
    assert "after importing threaded, threads run that a fork would lose" in warning


def test_a_module_that_ends_the_process_does_not_cost_the_zygote(jobs: list[Job], tmp_path: Path) -> None:
    """Workers are forked with what was there, and nothing more is learned."""
    job = learning(jobs, tmp_path, "dies, last")
    job.start()
    job.until(PreloadWarning)
    stop(job)
    (tmp_path / "go").write_text("")
    assert job.run() == [0]
    assert job.output()[0] == "True\n"
    [warning] = [fact.text for fact in job.facts if isinstance(fact, PreloadWarning)]
    assert "has ended" in warning


def test_what_takes_the_zygotes_place_ends_with_it(jobs: list[Job], tmp_path: Path) -> None:
    """Killed, both are gone, and another zygote is started; the workers go on."""
    job = learning(jobs, tmp_path, "last")
    job.start()
    job.until(Preloaded)
    zygote = zygote_of(job)
    [serves] = children(zygote)
    gone = [os.pidfd_open(pid) for pid in (zygote, serves)]
    os.kill(serves, signal.SIGKILL)
    job.until(Preloaded)
    assert all(map(readable, gone))
    assert zygote_of(job) != zygote
    stop(job)
    (tmp_path / "go").write_text("")
    assert job.run() == [0]
    assert job.output()[0].startswith("True")
