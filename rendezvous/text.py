"""Texts: counted nouns, lengths of time, texts cut to a length for people, names as one plain word for keys."""

from __future__ import annotations

SENTENCE_ENDS = (". ", "! ", "? ")
CLAUSE_ENDS = ("; ", ": ", ", ")
LIMIT_MIN = 8
"""The smallest limit of `shorten`, in characters."""
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def count(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(length_s: float) -> str:
    """A length of time for people: `0.3 s`, `9 s`, `12 min`, `3 h 20 min`, `2 days 4 h`."""
    if length_s < 0.0001:
        return "0 s"
    if length_s < 9.5:
        return f"{length_s:.2g} s"
    if length_s < 120:
        return f"{length_s:.0f} s"
    minutes = round(length_s / 60)
    hours, minutes = divmod(minutes, 60)
    days, hours_left = divmod(hours, 24)
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {minutes} min" if hours < 48 else f"{days} days {hours_left} h"


def shorten(text: str, limit: int) -> str:
    """`text` if it has at most `limit` characters, else its beginning, ending in `...`, of at most `limit` in all.

    The cut is at the last end of a sentence, else of a clause, else of a word, that leaves at least half of `limit`:
    a text for people names what happened in its first half. Where none is there, the cut is within a word.
    `limit` is at least LIMIT_MIN.
    """
    if len(text) <= limit:
        return text
    least, most = limit // 2, limit - len(" ...")
    for ends in (SENTENCE_ENDS, CLAUSE_ENDS):
        end = max(text.rfind(each, least - 1, most + 1) for each in ends) + 1
        if end:
            return f"{text[:end]} ..."
    end = text.rfind(" ", least, most + 1)
    return f"{text[:end]} ..." if end >= 0 else f"{text[: limit - 3]}..."


def percent_encoded(name: bytes) -> str:
    """The name, percent-encoded, so that it is one path segment of plain characters."""
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in name)
