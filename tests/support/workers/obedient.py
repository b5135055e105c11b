"""A worker that reports to the test's desk and carries out its orders."""

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
    """Workers of earlier rounds that run while this one does, as `node.round.local_rank`. Each locks a file of that
    name; the kernel releases the lock before any process can find that the worker has exited."""
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
        verb, _, argument = line.strip().partition(" ")
        if verb == "exit":
            sys.exit(int(argument))
        if verb == "raise":
            raise RuntimeError(argument)
        if verb == "kill":
            os.kill(os.getpid(), int(argument))
        if verb == "ignore":
            signal.signal(int(argument), signal.SIG_IGN)
        if verb == "handle":
            signal.signal(int(argument), lambda signum, frame: link.sendall(f"signal {signum}\n".encode()))
        if verb == "spawn":
            child = subprocess.Popen(["sleep", "1000"])
            link.sendall(f"spawned {child.pid}\n".encode())
            continue
        link.sendall(f"done {verb}\n".encode())
    # The desk is gone: the test has ended.
    os._exit(99)


main()
