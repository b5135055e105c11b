"""How far this node's clock is from a reference, an NTP server or the date that a web server sends; or how far the
clocks of a job's nodes are apart."""

from __future__ import annotations

import math
import socket
import struct
import time
from urllib.parse import urlsplit

from ...rendezvous.text import count, duration
from ..commands import NoReading
from ..decisions.clocks import skew
from ..decisions.questions import CLOCK
from ..decisions.watches import Reading
from .reader import Reader, judged, not_yet

ANSWER_S = 5.0
ASK_S = 2.0
"""How long the nodes have to answer what their clocks say. One that does not answer makes this longer, and the
comparison of the others less sure."""
NTP_PORT = 123
SINCE_1900_S = 2208988800
"""From NTP's epoch to Unix's; RFC 5905."""


class Clock(Reader):
    """`clock`: over while this node's clock is off by the threshold or more. Warned about, never relied on."""

    def read(self, now: float) -> Reading:
        where = urlsplit(self._watch.reference)
        try:
            if where.scheme == "ntp":
                behind_s, unsure_s = _ntp(where.hostname or "", where.port or NTP_PORT)
            else:
                behind_s, unsure_s = _http(where.scheme, where.netloc, where.path or "/")
        except (OSError, ValueError) as error:
            raise NoReading(f"no time from {where.scheme}://{where.hostname}: {error}") from None
        off_s = max(0.0, abs(behind_s) - unsure_s)
        side = "behind" if behind_s > 0 else "ahead of"
        text = f"this clock is {duration(abs(behind_s))} {side} {where.hostname}"
        return judged(
            off_s >= self._threshold.value, f"{text}, within {duration(unsure_s)} (limit {self._threshold.text})"
        )


class Clocks(Reader):
    """`clock` without a reference: over while the clock of one node is off those of the others."""

    def read(self, now: float) -> Reading:
        if self._job is None:
            raise NoReading("clocks of nodes are compared by an agent only; give a reference, or run it by --watch")
        sent, begun = time.time(), time.monotonic()
        answers = self._job.ask_nodes(CLOCK, {}, ASK_S)
        # Half the time that all took: each answer was made in that time, nobody knows when.
        unsure_s = (time.monotonic() - begun) / 2
        shown = {node: answer.get("unix_s") for node, answer in answers.found.items()}
        ahead_s = {
            node: at_s - sent - unsure_s
            for node, at_s in shown.items()
            if isinstance(at_s, int | float) and math.isfinite(at_s)
        }
        silent = f"; no answer from {count(len(answers.silent), 'node')}" if answers.silent else ""
        if len(ahead_s) < 2:
            return not_yet(f"only one node to compare{silent}")
        off_s, text = skew(ahead_s)
        off_s = max(0.0, off_s - 2 * unsure_s)
        text = f"{text}, within {duration(2 * unsure_s)} (limit {self._threshold.text}){silent}"
        return judged(off_s >= self._threshold.value, text)


def shown_clock() -> dict[str, float]:
    """A node's answer."""
    return {"unix_s": time.time()}


def _ntp(host: str, port: int) -> tuple[float, float]:
    """(seconds behind, half the round trip) by one request of SNTP."""
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, proto) as connection:
        connection.settimeout(ANSWER_S)
        sent = time.time()
        connection.connect(address)  # so that a port where nobody listens is an error at once
        connection.send(b"\x23" + 47 * b"\0")  # version 4, client
        answer = connection.recv(512)
        received = time.time()
    if len(answer) < 48 or answer[0] & 7 != 4 or not answer[1]:
        raise ValueError("the answer is not that of a time server")
    seconds = [whole - SINCE_1900_S + part / 2**32 for whole, part in struct.iter_unpack(">II", answer[32:48])]
    return ((seconds[0] - sent) + (seconds[1] - received)) / 2, (received - sent) / 2


def _http(scheme: str, netloc: str, path: str) -> tuple[float, float]:
    """(seconds behind, how unsure that is) by the header Date, which has whole seconds. Raises OSError, ValueError."""
    # Here, as agents that compare their clocks with each other need none of it.
    from email.utils import parsedate_to_datetime
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    connection = (HTTPSConnection if scheme == "https" else HTTPConnection)(netloc, timeout=ANSWER_S)
    try:
        sent = time.time()
        connection.request("HEAD", path)
        date = connection.getresponse().getheader("Date")
        received = time.time()
    except HTTPException as error:
        raise ValueError(f"{error}") from None
    finally:
        connection.close()
    if not date:
        raise ValueError("the answer has no Date")
    theirs = parsedate_to_datetime(date).timestamp() + 0.5
    return theirs - (sent + received) / 2, 0.5 + (received - sent) / 2
