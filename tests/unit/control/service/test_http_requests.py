"""HTTP/1.1 as the control socket understands it: any bytes are a request, wait for more, or are refused."""

from __future__ import annotations

import contextlib
import gzip
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_agent.control.service.http import BODY_MAX, HEAD_MAX, Request, RequestRefused, answer, chunk, take
from elastic_agent.control.service.messages import Job, Node, to_json
from elastic_agent.control.service.serving import listen

GOOD = b"POST /elastic.control.v1.Control/Status HTTP/1.1\r\nHost: agent\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize(("host", "shown"), [("0.0.0.0", os.uname().nodename), ("127.0.0.1", "127.0.0.1")])
def test_an_address_that_is_printed_can_be_reached_from_elsewhere(host: str, shown: str) -> None:
    """All addresses of this host are told by its name."""
    listener, address = listen(host, 0)
    with contextlib.closing(listener):
        assert address == f"{shown}:{listener.getsockname()[1]}"


def test_a_request_is_read_in_pieces_of_any_size_and_the_next_stays() -> None:
    for size in range(1, len(GOOD) + 1):
        received, found = bytearray(), []
        whole = GOOD * 2
        for at in range(0, len(whole), size):
            received += whole[at : at + size]
            while (request := take(received)) is not None:
                found.append(request)
        wanted = Request("POST", "/elastic.control.v1.Control/Status", b"{}", True, True)
        assert found == [wanted, wanted]
        assert not received


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET Status HTTP/1.1\r\n\r\n", 400),
        (b"GET  /Status HTTP/1.1\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
        (b"GET /Status HTTP/2\r\n\r\n", 505),
        (b"GET /Status HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /Status HTTP/1.1\r\nBad Name: 1\r\n\r\n", 400),
        (b"GET /Status HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET /Status HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET /Status HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 400),
        (b"GET /Status HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (BODY_MAX + 1), 413),
        (b"POST /Status HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"GET /" + b"x" * HEAD_MAX + b" HTTP/1.1\r\n", 431),
    ],
)
def test_what_is_no_request_is_refused_with_its_status(text: bytes, status: int) -> None:
    with pytest.raises(RequestRefused) as refused:
        take(bytearray(text))
    assert refused.value.status == status
    assert answer(status, b"{}", keeps=False).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    ("head", "keeps", "chunks"),
    [
        (b"GET /S HTTP/1.1\r\n\r\n", True, True),
        (b"GET /S HTTP/1.1\r\nConnection: Close\r\n\r\n", False, True),
        (b"GET /S HTTP/1.0\r\n\r\n", False, False),
        (b"GET /S HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True, False),
    ],
)
def test_whether_a_connection_is_kept_is_the_clients_word(head: bytes, keeps: bool, chunks: bool) -> None:
    request = take(bytearray(head))
    assert request is not None
    assert (request.keeps, request.chunks) == (keeps, chunks)


@given(st.lists(st.sampled_from([GOOD, b"\r\n", b"\r\n\r\n", b":", b" ", b"Content-Length: 5", b"GET /a HTTP/1.1"])))
def test_pieces_of_requests_in_any_order_do_no_harm(pieces: list[bytes]) -> None:
    _any(b"".join(pieces))


@given(st.binary(max_size=400))
def test_any_bytes_do_no_harm(text: bytes) -> None:
    _any(text)


def _any(text: bytes) -> None:
    received = bytearray(text)
    before = len(received) + 1
    with contextlib.suppress(RequestRefused):
        while take(received) is not None:
            assert len(received) < before
            before = len(received)


def test_a_chunk_says_its_length() -> None:
    assert chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"


def test_a_long_answer_is_compressed_for_clients_that_take_that() -> None:
    """The status of 512 nodes in less than 40 kB; a short one is left as it is."""
    request = take(bytearray(b"GET /Job HTTP/1.1\r\nAccept-Encoding: deflate, gzip\r\n\r\n"))
    assert request is not None
    assert request.zipped
    nodes = tuple(Node(f"node{n}:4711", "working", n, 8 * n, 8, 0.123, 3, n == 0, "", 3) for n in range(512))
    body = to_json(Job("job1", "node0:4711", "coordinator", nodes=nodes))
    head, _, content = answer(200, body, keeps=True, zipped=True).partition(b"\r\n\r\n")
    assert b"Content-Encoding: gzip" in head
    assert f"Content-Length: {len(content)}".encode() in head
    assert gzip.decompress(content) == body
    assert len(content) < 40_000 < len(body)
    assert answer(200, b"{}", keeps=True, zipped=True) == answer(200, b"{}", keeps=True)
