"""What it costs that an agent can be asked, and what asking costs. `make control-cost`; on an idle host.

Prints one line a figure: medians, with the extremes in brackets. Exit status 1 where an agent that nobody asks pays
more than it may.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from campaigns.control import large_job
from elastic_agent.control.service import http
from elastic_agent.control.service.describe import brief
from elastic_agent.control.service.messages import Job, to_json
from support.outside.asking import Asking, Link
from support.outside.remote import Door, wait_working
from support.outside.remote import ask as ask_remotely
from support.procfs import rss_kib
from support.rigs.relays import wait_for

JOB = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
NOISY = "import time\nwhile True:\n    print('x' * 10_000, flush=True)\n    time.sleep(0.01)\n"
ALONE = """\
import sys, time
import elastic_agent.launcher.command, elastic_agent.agent.agent
from elastic_agent.agent.loop import Loop
for name in [name for name in sys.modules if name.startswith("elastic_agent.control")]:
    del sys.modules[name]
def private(): return int(open("/proc/self/smaps_rollup").read().split("Private_Dirty:")[1].split()[0])
class Agent: pass
private()
loop, agent, before, began = Loop(), Agent(), private(), time.process_time()
from elastic_agent.control.control_socket import Service
service = Service("job", print, None)
service.begin(agent, loop)
print((time.process_time() - began) * 1e3, private() - before)
service.agent = None
service.close()
"""
MANY, WRITERS = 512, 8
UNASKED = {"unasked, processor ms": 1.5, "private KiB": 512.0}
"""What an agent that nobody asks pays at most, by the median."""
COMMANDS = ("status", "events", "explain", "stacks", "top")
"""Of elasticctl, which answer in less than 0.1 s."""


def main() -> int:
    """0: what has a limit keeps it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10, help="Starts of each kind. [10]")
    parser.add_argument("--calls", type=int, default=2000, help="Calls that are timed. [2000]")
    asked = parser.parse_args()
    asking = Asking()
    try:
        with tempfile.TemporaryDirectory() as folder:
            # Not every environment lets Python keep what it compiles; an installed agent has it.
            os.environ["PYTHONPYCACHEPREFIX"] = f"{folder}/compiled"
            os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
            kept = unasked(Path(folder), asking, asked.pairs)
            (Path(folder) / "large").mkdir(mode=0o700)
            many_nodes(Path(folder) / "large", asked.pairs)
            calls(Path(folder), asking, asked.calls)
            remote(Path(folder), asking, asked.calls, asked.pairs)
    finally:
        asking.close()
    return 0 if kept else 1


def unasked(folder: Path, asking: Asking, pairs: int) -> bool:
    """An agent that nobody asks: by itself, and whole agents in turn. Whether it pays no more than it may."""
    kept = True
    env = {**os.environ, **asking.env}
    found = [output([sys.executable, "-c", ALONE], env).split() for _ in range(pairs)]
    for (name, limit), texts in zip(UNASKED.items(), zip(*found, strict=True), strict=True):
        values = [float(text) for text in texts]
        tell(name, values)
        if statistics.median(values) > limit:
            kept = False
            print(f"{name}: more than {limit:g}")
    (folder / "job.py").write_text(JOB)
    starts: dict[str, list[tuple[float, ...]]] = {"off": [], "on": []}
    for number in range(pairs):
        for kind in sorted(starts, reverse=bool(number % 2)):
            where = "off" if kind == "off" else asking.env["ELASTIC_AGENT_RUN_DIR"]
            starts[kind].append(start(folder, {**os.environ, "ELASTIC_AGENT_RUN_DIR": where}))
    for kind, measured in starts.items():
        _tell_starts(f"an agent with its socket {kind}", measured)
    return kept


def _tell_starts(what: str, measured: Sequence[tuple[float, ...]]) -> None:
    for name, values in zip(
        ("to first line, ms", "processor, ms", "RSS, KiB"), zip(*measured, strict=True), strict=True
    ):
        tell(f"{what}: {name}", values)


def start(folder: Path, env: dict[str, str], *flags: str) -> tuple[float, ...]:
    began = time.perf_counter()
    agent = launch(folder, env, *flags)
    assert agent.stdout is not None
    agent.stdout.readline()
    took_ms = (time.perf_counter() - began) * 1e3
    cpu_ms = int(Path(f"/proc/{agent.pid}/schedstat").read_text().split()[0]) / 1e6
    rss = rss_kib(agent.pid)
    end(agent)
    return took_ms, cpu_ms, rss


def launch(folder: Path, env: dict[str, str], *flags: str, script: str = "job.py") -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "elastic_agent", "--standalone", *flags, str(folder / script)]
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def end(agent: subprocess.Popen[str]) -> None:
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    assert agent.stdout is not None
    agent.stdout.close()


def many_nodes(folder: Path, pairs: int) -> None:
    """The job of 512 nodes: its JSON, whole and in brief, and elasticctl beside that of one node."""
    nodes = large_job.nodes_of(MANY)
    job = Job("job1", "node0:4711", "coordinator", nodes=nodes, lease_s=5.0)
    for what, made in (("", job), (", in brief", None)):
        took, text = [], b""
        for _ in range(40):
            began = time.process_time()
            text = to_json(made or brief(job))
            took.append((time.process_time() - began) * 1e3)
        zipped = len(http.answer(200, text, keeps=True, zipped=True))
        print(f"{MANY} nodes{what}: {len(text)} bytes of JSON, {zipped} compressed, {min(took):.3g} ms")
    asked: dict[int, list[tuple[float, ...]]] = {1: [], MANY: []}
    for _ in range(pairs):
        for count, measured in asked.items():
            with large_job.stand_in(count, folder):
                measured.append(large_job.asked(folder))
    for count, measured in asked.items():
        for name, values in zip(("ms", "processor, ms"), zip(*measured, strict=True), strict=True):
            tell(f"elasticctl status of {count} nodes: {name}", [1e3 * value for value in values])


def calls(folder: Path, asking: Asking, number: int) -> None:
    """An agent that is asked, while 8 workers write as fast as they can."""
    (folder / "noisy.py").write_text(NOISY)
    logs = folder / "logs"
    flags = ("--nproc-per-node", str(WRITERS), "--redirects", "3", "--log-rotate", "1M:1", "--log-dir", str(logs))
    agent = launch(folder, {**os.environ, **asking.env}, *flags, script="noisy.py")
    path = asking.path(agent.pid)
    wait_for(lambda: sum(each.stat().st_size > 0 for each in logs.rglob("stdout.log")) == WRITERS)
    before = rss_kib(agent.pid)
    asking.ask(path, "Status")
    print(f"after the first request, KiB: {rss_kib(agent.pid) - before}")
    for method in ("Status", "Job", "Workers"):
        link = Link(path)
        timed(f"{method}, 8 workers writing", agent.pid, partial(_call, link, method), number)
        link.close()
    before = rss_kib(agent.pid)
    links = [Link(path) for _ in range(100)]
    for link in links:
        link.request("POST", "/Events", json.dumps({"follow": True}))
        link.getresponse().readline()
    print(f"100 followers of events, KiB: {rss_kib(agent.pid) - before}")
    for link in links:
        link.close()
    env = {**os.environ, **asking.env}
    for command in COMMANDS:
        took = []
        for _ in range(10):
            began = time.perf_counter()
            output([sys.executable, "-m", "elastic_agent.control.ctl", command], env)
            took.append((time.perf_counter() - began) * 1e3)
        tell(f"elasticctl {command}, wall ms", took)
    end(agent)


def _call(link: Link, method: str) -> None:
    link.request("POST", f"/{method}", b"{}")
    link.getresponse().read()


def remote(folder: Path, asking: Asking, number: int, pairs: int) -> None:
    """With --control-address: starts in turn with and without, and calls by gRPC while 8 workers write."""
    door = Door(folder / "door")
    starts: dict[str, list[tuple[float, ...]]] = {"without": [], "with": []}
    env = {**os.environ, **asking.env}
    for turn in range(pairs):
        for kind in sorted(starts, reverse=bool(turn % 2)):
            starts[kind].append(start(folder, env, *(door.flags(door.address()) if kind == "with" else ())))
    for kind, measured in starts.items():
        _tell_starts(f"an agent {kind} --control-address", measured)
    (folder / "noisy.py").write_text(NOISY)
    address = door.address()
    flags = ("--nproc-per-node", "8", "--redirects", "3", "--log-rotate", "1M:1", "--log-dir", str(folder / "remote"))
    agent = launch(folder, env, *flags, *door.flags(address), script="noisy.py")
    with door.channel(address) as channel:
        wait_working(channel)
        before = rss_kib(agent.pid)
        for method in ("Status", "Job", "Workers"):
            asked = partial(ask_remotely, channel, method)
            timed(f"{method} over TCP, 8 workers writing", agent.pid, asked, number // 4, on_loop=False)
        print(f"after these calls over TCP, more RSS, KiB: {rss_kib(agent.pid) - before}")
    end(agent)


def timed(what: str, pid: int, call: Callable[[], object], number: int, *, on_loop: bool = True) -> None:
    """Time calls to this agent. On a host with other work most of a long one is spent waiting for a processor: where
    the agent's loop answers, that is told apart, by what the kernel counts for the loop and for this process."""
    took, own = [], []
    for _ in range(number):
        waited, began = _waited_s(pid), time.perf_counter()
        call()
        took_s = time.perf_counter() - began
        took.append(took_s * 1e3)
        own.append(max(0.0, took_s - (_waited_s(pid) - waited)) * 1e3)
    took.sort()
    own.sort()
    half, most = number // 2, number * 99 // 100
    apart = f"; without waits for a processor p50 {own[half]:.3g}, p99 {own[most]:.3g}" if on_loop else ""
    print(f"{what}, ms: p50 {took[half]:.3g}, p99 {took[most]:.3g}{apart}")


def _waited_s(pid: int) -> float:
    """How long the agent's loop and this process have been ready to run without running."""
    files = (f"/proc/{pid}/task/{pid}/schedstat", "/proc/thread-self/schedstat")
    return sum(int(Path(file).read_text().split()[1]) for file in files) / 1e9


def output(argv: Sequence[str], env: dict[str, str]) -> str:
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout


def tell(what: str, values: Sequence[float]) -> None:
    print(f"{what}: {statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g}), {len(values)}")


if __name__ == "__main__":
    sys.exit(main())
