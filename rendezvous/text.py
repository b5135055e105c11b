"""Pieces of sentences for people: counted nouns, and texts cut to a length."""

from __future__ import annotations

SENTENCE_ENDS = (". ", "! ", "? ")
CLAUSE_ENDS = ("; ", ": ", ", ")
LIMIT_MIN = 8
"""The smallest limit of `shorten`, in characters."""


def count(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


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
