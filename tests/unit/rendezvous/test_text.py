"""Pieces of sentences for people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_agent.rendezvous.text import LIMIT_MIN, count, duration, shorten


def test_a_noun_is_counted() -> None:
    """One has no s."""
    assert [count(number, "node") for number in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]


@pytest.mark.parametrize(
    ("length_s", "shown"),
    [
        (0.00004, "0 s"),
        (0.00034, "0.00034 s"),
        (0.034, "0.034 s"),
        (2.13, "2.1 s"),
        (9.49, "9.5 s"),
        (9.6, "10 s"),
        (119.4, "119 s"),
        (121, "2 min"),
        (3599, "1 h 0 min"),
        (12000, "3 h 20 min"),
        (260000, "3 days 0 h"),
    ],
)
def test_a_length_of_time_has_the_unit_that_a_reader_would_choose(length_s: float, shown: str) -> None:
    """Two digits below ten seconds, whole numbers above."""
    assert duration(length_s) == shown


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("all of it.", 10, "all of it."),
        # The end of a sentence is preferred to a later end of a clause, that to a later end of a word.
        ("The store is lost. It timed out, for the third time in a row", 44, "The store is lost. It timed out, ..."),
        ("The store of the job is lost. It timed out, and so on", 45, "The store of the job is lost. ..."),
        ("cannot open the file: no room, so the agent gives it up", 50, "cannot open the file: no room, ..."),
        ("cannot open the file at all because of the disk", 30, "cannot open the file at ..."),
        # An end of a sentence in the first half would drop what matters.
        ("No. The worker raised an exception of its own making", 40, "No. The worker raised an exception ..."),
        # A point inside a number or a name ends no sentence.
        ("torch.distributed.DistNetworkError and more than that", 44, "torch.distributed.DistNetworkError and ..."),
        ("x" * 100, 20, "x" * 17 + "..."),
    ],
)
def test_a_long_text_is_cut_where_a_reader_would_pause(text: str, limit: int, shown: str) -> None:
    """After a sentence, else a clause, else a word; the dots say that something is missing."""
    assert shorten(text, limit) == shown


@given(text=st.text("ab .,;:", max_size=60), limit=st.integers(LIMIT_MIN, 50))
def test_the_first_half_is_never_cut(text: str, limit: int) -> None:
    """Whatever the text: at most the limit, at least its first half, and dots exactly where something is missing."""
    shown = shorten(text, limit)
    assert len(shown) <= limit
    if len(text) <= limit:
        assert shown == text
    else:
        assert shown.endswith("...")
        assert shown.startswith(text[: limit // 2])
