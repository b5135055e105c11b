"""Mutated requests to the control service on TCP: `make fuzz-control ARGS=--tcp`. Called by control_fuzz.py.

HTTP/2 frames by hand over TLS, so that each layer gets some that are none: the preface, frames, header blocks,
metadata, messages. Inputs count, as a server need not answer what it has not understood.
"""

from __future__ import annotations

import random
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

from support.outside.remote import READS, WRITES, Door, ask

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
METHODS = ("Status", "Job", "Workers", "Events", "Logs", "SetWatch", "Nothing", "")
"""None that would end the job, or that takes a process."""
TOKENS = (READS, WRITES, "", "x" * 200)
MESSAGES = (b"", b"\x08\x01", b"\x0a\x03abc", b"\xff\xff\xff\xff", b"\x08" * 40, b"\x0a\x7f")
AT_ONCE = 50
"""Requests of one connection."""


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
    message = chance.choice(MESSAGES)
    length = len(message) + chance.choice((0, 0, 0, 0, 1, 1 << 20))
    body = bytes((chance.choice((0, 0, 0, 1)),)) + struct.pack(">I", length) + message
    made = bytearray(frame(HEADERS, 4, stream, head) + frame(DATA, 1, stream, body))
    if chance.random() < 0.1:
        kind = chance.choice((RESET, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION, chance.randrange(256)))
        made += frame(kind, chance.randrange(256), chance.choice((0, stream)), chance.randbytes(chance.randrange(20)))
    for _ in range(chance.choice((0, 0, 0, 1, 3))):
        made[chance.randrange(len(made))] = chance.randrange(256)
    return bytes(made)


def send(door: Door, address: str, chance: random.Random, inputs: int) -> Iterator[int]:
    """Send so many; yields how many have been sent, now and then."""
    host, _, port = address.rpartition(":")
    tls = ssl.create_default_context(cafile=str(door.certificates.ca_file))
    tls.set_alpn_protocols(["h2"])
    sent = 0
    while sent < inputs:
        with socket.create_connection((host, int(port)), 60) as plain:
            try:
                if chance.random() < 0.02:  # no TLS at all
                    plain.sendall(chance.randbytes(200))
                    sent += 1
                    continue
                with tls.wrap_socket(plain, server_hostname=host) as link:
                    begin = PREFACE if chance.random() < 0.98 else chance.randbytes(len(PREFACE))
                    calls = [request(chance, 2 * number + 1) for number in range(AT_ONCE)]
                    link.sendall(begin + frame(SETTINGS, 0, 0, b"") + b"".join(calls))
                    sent += AT_ONCE
                    link.settimeout(0.05)
                    while link.recv(1 << 16):
                        pass
            except (OSError, ssl.SSLError):
                pass  # closed for what was no request, or nothing more to read
        yield sent


def works(door: Door, address: str) -> bool:
    """Whether a call of one who has a token is answered as ever."""
    with door.channel(address) as channel:
        return bool(ask(channel, "Status").phase == "working")


def make(folder: Path) -> Door:
    return Door(folder / "door")
