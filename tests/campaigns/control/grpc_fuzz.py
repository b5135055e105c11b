"""Mutated requests to the control service on TCP: `make fuzz-control ARGS=--tcp`. Called by control_fuzz.py.

HTTP/2 frames by hand over TLS, so that each layer gets some that are none: the preface, frames, header blocks,
metadata, messages. What spoils only a call is frequent, as the next calls of the connection are served then; what
spoils frames ends the connection. Inputs count, and beside them the calls that were answered.
"""

from __future__ import annotations

import random
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from elastic_agent.control.remote.server import GIVEN_BACK_EVERY
from support.outside.remote import BOUND_S, READS, WRITES, Door, ask

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
METHODS = ("Status", "Job", "Workers", "Goodput", "Events", "Logs", "SetWatch", "Nothing", "")
"""None that would end the job, or that takes a process."""
TOKENS = (READS, WRITES, "", "x" * 200)
MESSAGES = (b"", b"\x08\x01", b"\x0a\x03abc", b"\xff\xff\xff\xff", b"\x08" * 40, b"\x0a\x7f")
AT_ONCE, CONNECTIONS = 60, 4
"""Requests of one connection, and connections at a time."""
END_STREAM = 1
BEHIND_OTHERS = (grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED)
SETTLED_FROM = 100_000
"""Inputs from which an agent is looked at when it is quiet, which takes 4 s each time: fewer grow it by little."""
ANSWER_S = 0.05
"""How long there may be nothing to read: followers of events and calls without an end are never answered whole."""


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def literal(name: str, value: str) -> bytes:
    """A header without compression (RFC 7541, 6.2.2)."""
    return b"\x00" + b"".join(_sized(text.encode()) for text in (name, value))


def _sized(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes((len(text),)) + text
    left, made = len(text) - 127, bytearray(b"\x7f")
    while left >= 128:
        made.append(left % 128 + 128)
        left //= 128
    return bytes(made) + bytes((left,)) + text


def request(chance: random.Random, stream: int) -> bytes:
    """One call, whole or spoiled."""
    service = chance.choice(("elastic.control.v1.Control", "grpc.health.v1.Health", "x"))
    fields = {
        ":method": chance.choice(("POST", "POST", "POST", "GET")),
        ":scheme": "https",
        ":path": f"/{service}/{chance.choice(METHODS)}",
        ":authority": "agent",
        "te": "trailers",
        "content-type": chance.choice(("application/grpc", "application/grpc", "text/plain")),
        "authorization": f"Bearer {chance.choice(TOKENS)}",
    }
    head = b"".join(literal(name, value) for name, value in fields.items())
    message = bytearray(chance.choice(MESSAGES) + chance.choice((b"", b"", chance.randbytes(6))))
    spoiled = chance.random()
    if spoiled < 0.3:
        length = len(message) + chance.choice((0, 0, 1, 1 << 20))
        body = bytes((chance.choice((0, 1, 255)),)) + struct.pack(">I", length) + message
    else:
        body = b"\0" + struct.pack(">I", len(message)) + message
    made = bytearray(frame(HEADERS, 4, stream, head) + frame(DATA, 1, stream, body))
    if spoiled < 0.02:
        kind = chance.choice((RESET, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION, chance.randrange(256)))
        made += frame(kind, chance.randrange(256), chance.choice((0, stream)), chance.randbytes(chance.randrange(20)))
    elif spoiled < 0.04:
        for _ in range(chance.choice((1, 3))):
            made[chance.randrange(len(made))] = chance.randrange(256)
    return bytes(made)


class Counts:
    """What was sent, and how much of it was answered: by a status, or by the end of its stream."""

    def __init__(self) -> None:
        self.sent = self.answered = 0


def send(door: Door, address: str, chance: random.Random, inputs: int, counts: Counts) -> Iterator[None]:
    """Send so many, through some connections at a time; yields now and then."""
    seeds = (chance.randrange(1 << 60) for _ in range(inputs))
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        while counts.sent < inputs:
            some = [pool.submit(_connection, door, address, random.Random(next(seeds))) for _ in range(4 * CONNECTIONS)]
            for sent, answered in (each.result() for each in some):
                counts.sent += sent
                counts.answered += answered
            yield


def _connection(door: Door, address: str, chance: random.Random) -> tuple[int, int]:
    """One connection: how many requests it took, and answered."""
    host, _, port = address.rpartition(":")
    received = bytearray()
    sent = 0
    try:
        with socket.create_connection((host, int(port)), 60) as plain:
            if chance.random() < 0.02:  # no TLS at all
                plain.sendall(chance.randbytes(200))
                return 1, 0
            with _tls(door).wrap_socket(plain, server_hostname=host) as link:
                begin = PREFACE if chance.random() < 0.98 else chance.randbytes(len(PREFACE))
                calls = [request(chance, 2 * number + 1) for number in range(AT_ONCE)]
                sent = AT_ONCE
                link.sendall(begin + frame(SETTINGS, 0, 0, b"") + b"".join(calls))
                link.settimeout(ANSWER_S)
                while data := link.recv(1 << 16):
                    received += data
                    if ended(received) >= AT_ONCE:
                        break
    except (OSError, ssl.SSLError):
        pass  # closed for what was no request, or nothing more to read
    return sent, ended(received)


def _tls(door: Door) -> ssl.SSLContext:
    tls = ssl.create_default_context(cafile=str(door.certificates.ca_file))
    tls.set_alpn_protocols(["h2"])
    return tls


def ended(received: bytes | bytearray) -> int:
    """How many streams the server has ended in what it sent."""
    at, found = 0, set()
    while at + 9 <= len(received):
        length, kind, flags = int.from_bytes(received[at : at + 3], "big"), received[at + 3], received[at + 4]
        stream = int.from_bytes(received[at + 5 : at + 9], "big")
        if kind == RESET or (kind in (HEADERS, DATA) and flags & END_STREAM):
            found.add(stream)
        at += 9 + length
    return len(found)


def works(door: Door, address: str) -> float:
    """After how many seconds a call of one who has a token is answered as ever. Raises RpcError where none is.

    gRPC resets a call that has waited for 30 s behind others, and refuses one while 64 are under way."""
    began = time.monotonic()
    while True:
        try:
            with door.channel(address) as channel:
                assert ask(channel, "Status").phase == "working"
            return time.monotonic() - began
        except grpc.RpcError as error:
            if error.code() not in BEHIND_OTHERS or time.monotonic() > began + BOUND_S:
                raise


def settle(door: Door, address: str) -> None:
    """Make calls, one after another, until the agent has given back what calls before them have left free, with nothing
    else under way. Only then its size says something: 64 calls under way hold 25 MiB, and RSS depends on when memory
    was given back last. What is in use after that, and what cannot be given back between it, counts as growth."""
    works(door, address)
    with door.channel(address) as channel:
        for _ in range(GIVEN_BACK_EVERY + 1):
            ask(channel, "Workers")


def make(folder: Path) -> Door:
    return Door(folder / "door")
