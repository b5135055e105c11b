"""A worker that connects to the desk of the test and follows its orders; see `Worker.order` in support/desk.py."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path


def others_alive(folder: Path) -> list[str]:
    """Workers of earlier rounds that live while this one does, as `node.round.local_rank`. Each holds a lock on a file
    of that name, which the kernel releases before any process can observe the worker's exit."""
    me, number = os.environ["TEST_NODE"], int(os.environ["ELASTIC_AGENT_ROUND"])
    mine = os.open(folder / f"{me}.{number}.{os.environ['LOCAL_RANK']}", os.O_CREAT | os.O_RDWR)
    fcntl.flock(mine, fcntl.LOCK_EX)
    alive = []
    for path in folder.iterdir():
        if int(path.name.split(".")[1]) < number:
            with path.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    alive.append(path.name)
    return alive


def main() -> None:
    os.environ["TEST_STARTED"] = str(time.monotonic())
    if "TEST_LOCKS" in os.environ:
        os.environ["TEST_ALIVE"] = ",".join(others_alive(Path(os.environ["TEST_LOCKS"])))
    link = socket.socket(socket.AF_UNIX)
    link.connect(os.environ["TEST_DESK"])
    hello = {"env": dict(os.environ), "argv": sys.argv, "pid": os.getpid()}
    link.sendall(json.dumps(hello).encode() + b"\n")
    for line in link.makefile("r"):
        what, _, how = line.strip().partition(" ")
        if what == "exit":
            sys.exit(int(how))
        if what == "raise":
            raise RuntimeError(how)
        if what == "kill":
            os.kill(os.getpid(), int(how))
        if what == "ignore":
            signal.signal(int(how), signal.SIG_IGN)
        if what == "handle":
            signal.signal(int(how), lambda signum, frame: link.sendall(f"signal {signum}\n".encode()))
        if what == "spawn":
            child = subprocess.Popen(["sleep", "1000"])
            link.sendall(f"spawned {child.pid}\n".encode())
            continue
        link.sendall(f"done {what}\n".encode())
    # The desk is closed: the test has ended.
    os._exit(99)


main()
