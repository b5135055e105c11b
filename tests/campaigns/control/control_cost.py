"""What it costs that an agent can be asked, and what asking costs. `make control-cost`; on an idle host.

Prints one line a figure: medians, with the extremes in brackets.
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
from collections.abc import Sequence
from pathlib import Path

from support.outside.asking import Asking, Link
from support.procfs import rss_kib

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
MANY = """\
import sys, time
from elastic_agent.control.service.messages import Job, Node, to_json
nodes = tuple(Node(f"node{n}:4711", "working", n, 8 * n, 8, 0.123, 3, n == 0, "", 3) for n in range(512))
job = Job("job1", "node0:4711", "coordinator", nodes=nodes)
to_json(job)
began = time.perf_counter()
text = to_json(job)
print((time.perf_counter() - began) * 1e3, len(text))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10, help="Starts of each kind. [10]")
    parser.add_argument("--calls", type=int, default=2000, help="Calls that are timed. [2000]")
    asked = parser.parse_args()
    asking = Asking()
    try:
        with tempfile.TemporaryDirectory() as folder:
            unasked(Path(folder), asking, asked.pairs)
            calls(Path(folder), asking, asked.calls)
    finally:
        asking.close()


def unasked(folder: Path, asking: Asking, pairs: int) -> None:
    """An agent that nobody asks: by itself, and whole agents in turn."""
    env = {**os.environ, **asking.env}
    for what, program in (("unasked, processor ms; private KiB", ALONE), ("512 nodes, ms; bytes of JSON", MANY)):
        found = [output([sys.executable, "-c", program], env).split() for _ in range(pairs)]
        for name, values in zip(what.split("; "), zip(*found, strict=True), strict=True):
            tell(name, [float(value) for value in values])
    (folder / "job.py").write_text(JOB)
    starts: dict[str, list[tuple[float, ...]]] = {"off": [], "on": []}
    for number in range(pairs):
        for kind in sorted(starts, reverse=bool(number % 2)):
            where = "off" if kind == "off" else asking.env["ELASTIC_AGENT_RUN_DIR"]
            starts[kind].append(start(folder, {**os.environ, "ELASTIC_AGENT_RUN_DIR": where}))
    for kind, measured in starts.items():
        for name, values in zip(
            ("to first line, ms", "processor, ms", "RSS, KiB"), zip(*measured, strict=True), strict=True
        ):
            tell(f"an agent with its socket {kind}: {name}", values)


def start(folder: Path, env: dict[str, str]) -> tuple[float, ...]:
    began = time.perf_counter()
    agent = launch(folder, env)
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


def calls(folder: Path, asking: Asking, number: int) -> None:
    """An agent that is asked, while 8 workers write as fast as they can."""
    (folder / "noisy.py").write_text(NOISY)
    flags = ("--nproc-per-node", "8", "--redirects", "3", "--log-rotate", "1M:1", "--log-dir", str(folder / "logs"))
    agent = launch(folder, {**os.environ, **asking.env}, *flags, script="noisy.py")
    path = asking.path(agent.pid)
    before = rss_kib(agent.pid)
    asking.ask(path, "Status")
    print(f"after the first request, KiB: {rss_kib(agent.pid) - before}")
    for method in ("Status", "Job", "Workers"):
        link, took = Link(path), []
        for _ in range(number):
            began = time.perf_counter()
            link.request("POST", f"/{method}", b"{}")
            link.getresponse().read()
            took.append((time.perf_counter() - began) * 1e3)
        link.close()
        took.sort()
        print(f"{method}, 8 workers writing, ms: p50 {took[number // 2]:.3g}, p99 {took[number * 99 // 100]:.3g}")
    before = rss_kib(agent.pid)
    links = [Link(path) for _ in range(100)]
    for link in links:
        link.request("POST", "/Events", json.dumps({"follow": True}))
        link.getresponse().readline()
    print(f"100 followers of events, KiB: {rss_kib(agent.pid) - before}")
    for link in links:
        link.close()
    env = {**os.environ, **asking.env}
    took = []
    for _ in range(10):
        began = time.perf_counter()
        output([sys.executable, "-m", "elastic_agent.control.ctl", "status"], env)
        took.append((time.perf_counter() - began) * 1e3)
    tell("elasticctl status, wall ms", took)
    end(agent)


def output(argv: Sequence[str], env: dict[str, str]) -> str:
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout


def tell(what: str, values: Sequence[float]) -> None:
    print(f"{what}: {statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g}), {len(values)}")


if __name__ == "__main__":
    main()
