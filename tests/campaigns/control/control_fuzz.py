"""A million mutated requests to the control socket of a real agent, to its page or to its port: `make fuzz-control`.

Several at a time through each connection, as a client that reuses it would send them; those that were answered count.
Fails where the agent stops, answers 500, or grows by more than 2 MiB from the second tenth to the last. With --page:
HTTP to what `--page` serves, half of it with the secret. With --tcp: gRPC (grpc_fuzz.py), by 8 MiB.
"""

from __future__ import annotations

import argparse
import errno
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from campaigns.control import grpc_fuzz
from support.outside.asking import Asking
from support.outside.remote import Door
from support.procfs import open_files, rss_kib

JOB = "import time\nprint('up', flush=True)\ntime.sleep(86400)\n"
BODIES = (
    b"{}", b'{"follow":false,"since":-3}', b'{"ranks":[0],"tailBytes":10}', b"[1,2]", b'{"since":"x"}',
    b'{"ranks":[[]]}', b"\xff\xfe", b"{" * 40, b'{"names":"moon"}', b'{"since":99999999999}',
)  # fmt: skip
PAGE_PATHS = (b"/%b/", b"/%b/", b"/%b/stream", b"/%b", b"/%b/more", b"/%b/?a=b")
METHODS = (
    b"Status", b"Job", b"Workers", b"Goodput", b"Events", b"Logs", b"Nothing", b"SetWatch", b"", b"/", b"Status?x=1",
)  # fmt: skip
"""None that would end the job, or that takes a process."""
PAGE = re.compile(r"the page of this job: http://127\.0\.0\.1:(\d+)/([0-9a-f]{32})/$")
GROWTH_KIB, GROWTH_TCP_KIB = 2048, 8192


def request(chance: random.Random, secret: bytes) -> bytes:
    """One request, whole or spoiled: to the page with this secret, or where that is empty to the control socket."""
    body = chance.choice(BODIES)
    if secret:
        body = chance.choice((b"", b"", body))
        path = chance.choice(PAGE_PATHS) % chance.choice(
            (secret, secret, secret[:-1], chance.randbytes(16).hex().encode())
        )
    else:
        path = chance.choice((b"/", b"/elastic.control.v1.Control/")) + chance.choice(METHODS)
    head = b"%b %b HTTP/1.%d\r\nContent-Length: %d\r\n" % (
        chance.choice((b"GET", b"POST", b"GET" if secret else b"POST", b"PUT")),
        path,
        chance.choice((0, 1, 1, 1, 2)),
        len(body) + chance.choice((0, 0, 0, 0, -1)) * bool(body),
    )
    made = bytearray(head + chance.choice((b"", b"", b"Host: a\r\n", b"Connection: close\r\n")) + b"\r\n" + body)
    for _ in range(chance.choice((0, 0, 1, 2, 5))):
        made[chance.randrange(len(made))] = chance.randrange(256)
    return bytes(made)


def main(argv: Sequence[str] | None = None) -> int:
    """0: it held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--tcp", action="store_true", help="gRPC with TLS, and not the unix socket.")
    parser.add_argument("--page", action="store_true", help="The page, and not the unix socket.")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    asked = parser.parse_args(argv)
    chance = random.Random(asked.seed)
    asking = Asking()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "job.py").write_text(JOB)
        door = grpc_fuzz.make(Path(folder)) if asked.tcp else None
        address = door.address() if door else ""
        flags = door.flags(address) if door else ("--page",) * asked.page
        command = [sys.executable, "-m", "elastic_agent", "--standalone", *flags, f"{folder}/job.py"]
        with subprocess.Popen(
            command,
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
                path = asking.path(agent.pid)
                link = unix(path)
                if asked.page:
                    assert agent.stderr is not None
                    link = page(next(each for each in map(PAGE.search, agent.stderr) if each))
                return fuzz(asking, path, link, agent.pid, asked.inputs, chance, asked.seed)
            finally:
                agent.terminate()
                _, said = agent.communicate(timeout=60)
                if "please report" in said or os.environ.get("SHOW"):
                    print(said)
                asking.close()


class Sizes:
    """The agent's RSS after each tenth."""

    def __init__(self, pid: int, inputs: int) -> None:
        self._pid, self._step, self._kib = pid, inputs // 10, [rss_kib(pid)]

    def due(self, done: int) -> bool:
        return done >= self._step * len(self._kib)

    def look(self, done: int) -> None:
        if self.due(done):
            self._kib.append(rss_kib(self._pid))

    @property
    def grown_kib(self) -> int:
        """From the second, third and fourth tenth to the last three, by their medians: at each look some requests may
        be under way."""
        return int(statistics.median(self._kib[-3:]) - statistics.median(self._kib[2:5]))

    def __str__(self) -> str:
        return f"RSS before and after each tenth, KiB: {', '.join(map(str, self._kib))}"


class Way(NamedTuple):
    """To what is fuzzed."""

    family: int
    address: Any
    secret: bytes


def unix(path: str) -> Way:
    return Way(socket.AF_UNIX, path, b"")


def page(found: re.Match[str]) -> Way:
    return Way(socket.AF_INET, ("127.0.0.1", int(found[1])), found[2].encode())


def fuzz(asking: Asking, path: str, way: Way, pid: int, inputs: int, chance: random.Random, seed: int) -> int:
    sent, answered, good, sizes, began = 0, 0, 0, Sizes(pid, inputs), time.monotonic()
    while answered < inputs:  # what follows one that is none is not read
        number = chance.choice((1, 5, 20, 60))
        with socket.socket(way.family) as link:
            link.settimeout(60)
            try:
                link.connect(way.address)
                link.sendall(b"".join(request(chance, way.secret) for _ in range(number)))
                link.shutdown(socket.SHUT_WR)
                text = b"".join(iter(lambda: link.recv(1 << 20), b""))
            except (BrokenPipeError, ConnectionResetError):
                text = b""  # closed after the first one that was none
            except OSError as error:
                if error.errno != errno.ENOTCONN:  # reset before its end could be sent
                    raise
                text = b""
        sent += number
        answered += text.count(b"HTTP/1.1 ")
        good += text.count(b"HTTP/1.1 200")
        if b"HTTP/1.1 500" in text:
            print(f"seed {seed}: an answer of 500: {text[:500]!r}")
            return 1
        sizes.look(answered)
    status = asking.ask(path, "Status")["phase"]
    took_s = time.monotonic() - began
    print(
        f"seed {seed}: {sent} inputs, {answered} answers, {good} of them 200, in {took_s:.0f} s; {sizes}; "
        f"{open_files(pid)} descriptors; the node is {status}"
    )
    return int(sizes.grown_kib > GROWTH_KIB or status != "working")


def fuzz_tcp(door: Door, address: str, pid: int, inputs: int, chance: random.Random, seed: int) -> int:
    began, sizes, counts = time.monotonic(), Sizes(pid, inputs), grpc_fuzz.Counts()
    quiet = grpc_fuzz.settle if inputs >= grpc_fuzz.SETTLED_FROM else grpc_fuzz.works
    for _ in grpc_fuzz.send(door, address, chance, inputs, counts):
        if sizes.due(counts.sent):
            quiet(door, address)
            sizes.look(counts.sent)
    works_s = grpc_fuzz.works(door, address)
    took_s, threads = time.monotonic() - began, len(os.listdir(f"/proc/{pid}/task"))
    print(
        f"seed {seed}: {counts.sent} inputs, {counts.answered} calls answered, in {took_s:.0f} s; {sizes}; "
        f"{threads} threads, {open_files(pid)} descriptors; a call "
        f"is answered after {works_s:.1f} s"
    )
    return int(sizes.grown_kib > GROWTH_TCP_KIB)


if __name__ == "__main__":
    sys.exit(main())
