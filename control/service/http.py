"""As much of HTTP/1.1 as the control socket needs: requests in, answers out. Pure: bytes to values and back."""

from __future__ import annotations

import re
from typing import NamedTuple

HEAD_MAX = 8192
"""Bytes of a request's first line and headers."""
BODY_MAX = 65536
"""Bytes of a request's body."""
REASONS = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    411: "Length Required",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}
JSON, LINES = "application/json", "application/x-ndjson"
LAST_CHUNK = b"0\r\n\r\n"
ZIPPED_MIN = 4096
"""Bytes of an answer above which it is compressed for clients that take that."""
GZIP = 31
"""zlib's `wbits` for the form of gzip."""
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Request(NamedTuple):
    """One HTTP request, parsed."""

    method: str
    path: str
    body: bytes
    keeps: bool
    """The connection may be used again."""
    chunks: bool
    """The client takes an answer in chunks; HTTP/1.0 does not."""
    zipped: bool = False
    """The client takes an answer that is compressed by gzip."""


class RequestRefused(Exception):
    """A request that is not carried out: a status, and one line for the client."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def take(received: bytearray) -> Request | None:
    """The first request of what was received, which is removed from it; None while it is not whole. Raises
    RequestRefused; then nothing more that was received means anything."""
    end = received.find(b"\r\n\r\n", 0, HEAD_MAX + 4)
    if end < 0:
        if len(received) > HEAD_MAX:
            raise RequestRefused(431, f"the request's head is longer than {HEAD_MAX} bytes")
        return None
    first, *lines = bytes(received[:end]).split(b"\r\n")
    method, path, version = _first(first)
    headers = _headers(lines)
    if b"transfer-encoding" in headers:
        raise RequestRefused(411, "a chunked body is not supported; send Content-Length")
    length = _length(headers.get(b"content-length", b"0"))
    begin = end + 4
    if len(received) < begin + length:
        return None
    body = bytes(received[begin : begin + length])
    del received[: begin + length]
    connection = headers.get(b"connection", b"").lower()
    modern = version == b"HTTP/1.1"
    keeps = b"close" not in connection if modern else b"keep-alive" in connection
    zipped = b"gzip" in headers.get(b"accept-encoding", b"").lower()
    return Request(method, path, body, keeps, modern, zipped)


def _first(line: bytes) -> tuple[str, str, bytes]:
    parts = line.split(b" ")
    if len(parts) != 3 or not _NAME.fullmatch(parts[0]) or not parts[1].startswith(b"/") or not parts[1].isascii():
        raise RequestRefused(400, "the first line is not `METHOD /PATH HTTP/1.1`")
    if parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise RequestRefused(505, "only HTTP/1.0 and HTTP/1.1 are supported")
    return parts[0].decode(), parts[1].decode().partition("?")[0], parts[2]


def _headers(lines: list[bytes]) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.fullmatch(name):
            raise RequestRefused(400, "a header is not `NAME: VALUE`")
        name = name.lower()
        if name == b"content-length" and name in headers:
            raise RequestRefused(400, "Content-Length is given twice")
        headers[name] = value.strip()
    return headers


def _length(text: bytes) -> int:
    if not text.isdigit() or len(text) > 9:
        raise RequestRefused(400, "Content-Length is no number")
    if int(text) > BODY_MAX:
        raise RequestRefused(413, f"the body is longer than {BODY_MAX} bytes")
    return int(text)


def answer(status: int, body: bytes, *, keeps: bool, kind: str = JSON, more: str = "", zipped: bool = False) -> bytes:
    """A whole answer. `more`: further headers, each with the end of its line. `zipped`: by gzip, where it is long
    enough to be worth it."""
    if zipped and len(body) > ZIPPED_MIN:
        import zlib  # few ask for it

        packing = zlib.compressobj(level=1, wbits=GZIP)
        body = packing.compress(body) + packing.flush()
        more += "Content-Encoding: gzip\r\n"
    end = "" if keeps else "Connection: close\r\n"
    head = (
        f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}{end}\r\n"
    )
    return head.encode() + body


def begin_stream(*, chunks: bool, kind: str = LINES, more: str = "") -> bytes:
    """What is before the first line of a stream. Without chunks its end is that of the connection. more: as above."""
    coding = "Transfer-Encoding: chunked\r\n" if chunks else ""
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{more}{coding}Connection: close\r\n\r\n".encode()


def chunk(data: bytes) -> bytes:
    """One chunk of a stream."""
    return b"%x\r\n%b\r\n" % (len(data), data)
