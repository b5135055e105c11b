"""A million mutated requests to the control socket of a real agent, or to its port: `make fuzz-control`.

Several at a time through each connection, as a client that reuses it would send them; those that were answered count.
Fails where the agent stops, answers 500, or grows by more than 2 MiB after the first tenth. With --tcp: gRPC
(grpc_fuzz.py), whose arenas may grow by 16 MiB.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from campaigns.control import grpc_fuzz
from support.outside.asking import Asking
from support.outside.remote import Door
from support.procfs import open_files, rss_kib

JOB = "import time\nprint('up', flush=True)\ntime.sleep(86400)\n"
BODIES = (
    b"{}", b'{"follow":false,"since":-3}', b'{"ranks":[0],"tailBytes":10}', b"[1,2]", b'{"since":"x"}',
    b'{"ranks":[[]]}', b"\xff\xfe", b"{" * 40, b'{"names":"moon"}', b'{"since":99999999999}',
)  # fmt: skip
METHODS = (b"Status", b"Job", b"Workers", b"Events", b"Logs", b"Nothing", b"SetWatch", b"", b"/", b"Status?x=1")
"""None that would end the job, or that takes a process."""
GROWTH_KIB, GROWTH_TCP_KIB = 2048, 16384


def request(chance: random.Random) -> bytes:
    """One request, whole or spoiled."""
    body = chance.choice(BODIES)
    path = chance.choice((b"/", b"/elastic.control.v1.Control/")) + chance.choice(METHODS)
    head = b"%b %b HTTP/1.%d\r\nContent-Length: %d\r\n" % (
        chance.choice((b"GET", b"POST", b"POST", b"PUT")),
        path,
        chance.choice((0, 1, 1, 1, 2)),
        len(body) + chance.choice((0, 0, 0, 0, -1)),
    )
    made = bytearray(head + chance.choice((b"", b"", b"Host: a\r\n", b"Connection: close\r\n")) + b"\r\n" + body)
    for _ in range(chance.choice((0, 0, 1, 2, 5))):
        made[chance.randrange(len(made))] = chance.randrange(256)
    return bytes(made)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--tcp", action="store_true", help="gRPC with TLS, and not the unix socket.")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    asking = Asking()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "job.py").write_text(JOB)
        door = grpc_fuzz.make(Path(folder)) if asked.tcp else None
        address = door.address() if door else ""
        flags = door.flags(address) if door else ()
        argv = [sys.executable, "-m", "elastic_agent", "--standalone", *flags, f"{folder}/job.py"]
        with subprocess.Popen(
            argv,
            env={**os.environ, **asking.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as agent:
            try:
                assert agent.stdout is not None
                agent.stdout.readline()
                if door:
                    return fuzz_tcp(door, address, agent.pid, asked.inputs, chance, asked.seed)
                return fuzz(asking, agent.pid, asked.inputs, chance, asked.seed)
            finally:
                agent.terminate()
                _, said = agent.communicate(timeout=60)
                if "please report" in said or os.environ.get("SHOW"):
                    print(said)
                asking.close()


def fuzz(asking: Asking, pid: int, inputs: int, chance: random.Random, seed: int) -> int:
    path, sent, answered, before, began = asking.path(pid), 0, 0, 0, time.monotonic()
    while answered < inputs:  # what follows one that is none is not read
        number = chance.choice((1, 5, 20, 60))
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(path)
            link.settimeout(60)
            try:
                link.sendall(b"".join(request(chance) for _ in range(number)))
                link.shutdown(socket.SHUT_WR)
                text = b"".join(iter(lambda: link.recv(1 << 20), b""))
            except (BrokenPipeError, ConnectionResetError):
                text = b""  # closed after the first one that was none
        sent += number
        answered += text.count(b"HTTP/1.1 ")
        if b"HTTP/1.1 500" in text:
            print(f"seed {seed}: an answer of 500: {text[:500]!r}")
            return 1
        if not before and answered > inputs // 10:
            before = rss_kib(pid)
    grown = rss_kib(pid) - before
    status = asking.ask(path, "Status")["phase"]
    took_s = time.monotonic() - began
    print(
        f"seed {seed}: {sent} inputs, {answered} answers in {took_s:.0f} s; grown by {grown} KiB; the node is {status}"
    )
    return int(grown > GROWTH_KIB or status != "working")


def fuzz_tcp(door: Door, address: str, pid: int, inputs: int, chance: random.Random, seed: int) -> int:
    began, before, sent = time.monotonic(), 0, 0
    for sent in grpc_fuzz.send(door, address, chance, inputs):
        if not before and sent > inputs // 10:
            before = rss_kib(pid)
    works, grown = grpc_fuzz.works(door, address), rss_kib(pid) - before
    took_s, threads, descriptors = (
        time.monotonic() - began,
        len(os.listdir(f"/proc/{pid}/task")),
        open_files(pid),
    )
    print(
        f"seed {seed}: {sent} inputs in {took_s:.0f} s; grown by {grown} KiB; {threads} threads, {descriptors} "
        f"descriptors; a call {'is answered' if works else 'FAILS'}"
    )
    return int(grown > GROWTH_TCP_KIB or not works)


if __name__ == "__main__":
    sys.exit(main())
