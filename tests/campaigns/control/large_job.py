"""A stand-in for the agent that coordinates a job of many nodes, and what `elasticctl status` takes to show it."""

from __future__ import annotations

import json
import os
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from elastic_agent.agent.lifecycle.state import Phase
from elastic_agent.agent.report import Status
from elastic_agent.control.service.describe import BRIEF_NODES, brief
from elastic_agent.control.service.messages import Goodput, Job, Node, Workers, to_json
from elastic_agent.rendezvous.records import Member

ASK = ["-m", "elastic_agent.control.ctl", "status"]


def nodes_of(count: int) -> tuple[Node, ...]:
    """Nodes of 8 workers each, all of them at work."""
    return tuple(Node(f"node{n}:4711", "working", n, 8 * n, 8, 0.123, 3, n == 0, "", 3) for n in range(count))


def answers_of(count: int, *, in_brief: bool = False) -> dict[str, bytes]:
    """What is answered, by method; in brief, for those who ask so."""
    members = tuple(Member(f"{n:032x}", f"node{n}:4711", n, 8 * n, 8, "default", 8 * n) for n in range(count))
    if in_brief and count > BRIEF_NODES:
        members = members[:1]
    job = Job("job1", "node0:4711", "coordinator", phase="running", because="every place is taken", round=3,
              min_nodes=count, max_nodes=count, world_size=8 * count, nodes=nodes_of(count), lease_s=5.0)  # fmt: skip
    status = Status(
        name="node0:4711", phase=Phase.WORKING, because="round 3 begins", round=3, group_rank=0, world_size=8 * count,
        members=members, restarts_used=0, max_restarts=3, spare=False, hosting=True, coordinating=True,
        worker_pids={}, log_dir="", preload="", run_id="job1", pid=os.getpid(), min_nodes=count, max_nodes=count,
    )  # fmt: skip
    return {"Status": to_json(status),
            "Job": to_json(brief(job) if in_brief else job), "Workers": to_json(Workers("node0:4711", 3, ())),
            "Events": b"", "Goodput": to_json(Goodput("node0:4711"))}  # fmt: skip


@contextmanager
def stand_in(count: int, run_dir: Path) -> Iterator[None]:
    """Answer in a run directory there, as the agent of a job of so many nodes."""
    answers = {in_brief: answers_of(count, in_brief=in_brief) for in_brief in (False, True)}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = answers[asked.get("brief", False)][self.path.rpartition("/")[2]]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if body:  # else the client may have closed already
                self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Nothing."""

    folder = run_dir / f"{os.getpid()}-{count}"
    folder.mkdir(mode=0o700)
    with socketserver.ThreadingUnixStreamServer(str(folder / "control.sock"), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            (folder / "control.sock").unlink()
            folder.rmdir()


def asked(run_dir: Path) -> tuple[float, float]:
    """Seconds that `elasticctl status` takes, and seconds of processor."""
    env = {**os.environ, "ELASTIC_AGENT_RUN_DIR": str(run_dir)}
    began = time.perf_counter()
    pid = os.posix_spawn(
        sys.executable, [sys.executable, *ASK], env,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )  # fmt: skip
    _, status, used = os.wait4(pid, 0)
    assert status == 0, status
    return time.perf_counter() - began, used.ru_utime + used.ru_stime
