"""How bytes become lines on a console: nothing is lost, and each line has its prefix."""

from __future__ import annotations

import random

import pytest

from elastic_agent.agent.output.lines import LONG_LINE, ConsoleLines, prefix_lines, prefix_of, timestamp


def shown(*parts: bytes, at_once: bool = False, prefix: bytes = b"> ") -> list[bytes]:
    """What each part adds to the console, and what the end of the stream adds."""
    lines = ConsoleLines(lambda: prefix, at_once=at_once)
    return [*(lines.take(part) for part in parts), lines.finish()]


def test_an_unfinished_line_waits_for_its_end() -> None:
    """With several workers on a console only whole lines are passed on, so that no two mix."""
    assert shown(b"one\ntw", b"o\nthr") == [b"> one\n", b"> two\n", b"> thr\n"]


def test_a_console_with_one_worker_shows_a_line_as_it_grows() -> None:
    """A prompt, or dots, are shown before the line ends; the prefix is shown once."""
    assert shown(b"one\ntw", b"o", b"\nx\n", at_once=True) == [b"> one\n> tw", b"o", b"\n> x\n", b""]


@pytest.mark.parametrize("at_once", [False, True])
def test_carriage_returns_pass_through(at_once: bool) -> None:
    r"""A progress bar's \r ends a line and is passed on unchanged; \r\n is one end, wherever the stream is cut."""
    whole = b"> 10%\r> 20%\r> 30%\r> done\r\n> next\n"
    assert b"".join(shown(b"10%\r20%\r", b"30%\rdone\r", b"\nnext\n", at_once=at_once)) == whole


def test_a_progress_bar_of_a_single_rank_is_shown_at_once() -> None:
    r"""tqdm writes \r first and no end of line: each update is shown at once, over the one before."""
    updates = shown(b"\r 10%", b"\r 20%", b"\r 30%\n", at_once=True)
    assert updates == [b"> \r>  10%", b"\r>  20%", b"\r>  30%\n", b""]


def test_a_progress_bar_beside_others_is_one_update_behind() -> None:
    r"""With several workers on a console, the \r that begins the next update ends the one before."""
    assert shown(b"10%\r20%\r30") == [b"> 10%\r> 20%\r", b"> 30\n"]


@pytest.mark.parametrize("at_once", [False, True])
def test_binary_output_passes_through(at_once: bool) -> None:
    """Bytes that are no text reach the console unchanged."""
    assert b"".join(shown(b"\x00\xff\xfe\x1b[31m\n", at_once=at_once)) == b"> \x00\xff\xfe\x1b[31m\n"


def test_a_long_line_comes_in_pieces() -> None:
    """However long a line without an end is, at most 64 KiB of it are kept."""
    text = b"".join(shown(b"x" * (3 * LONG_LINE + 5), b"\nshort\n"))
    assert [len(line) - 2 for line in text.splitlines()] == [LONG_LINE] * 3 + [5, 5]


@pytest.mark.parametrize("at_once", [False, True])
def test_without_a_prefix_bytes_are_unchanged(at_once: bool) -> None:
    """Plain output is shown as written, however long its lines are and wherever the stream is cut."""
    dice = random.Random(7)
    text = b"".join(dice.choice([b"a", b"\n", b"\r", b"\r\n", b"y" * 70000]) for _ in range(300))
    cuts = sorted(dice.randrange(len(text)) for _ in range(100))
    parts = [text[low:high] for low, high in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert b"".join(shown(*parts, at_once=at_once, prefix=b"")) == text


@pytest.mark.parametrize("at_once", [False, True])
def test_where_the_stream_is_cut_does_not_matter(at_once: bool) -> None:
    """The same bytes give the same lines, in whatever pieces they are read."""
    dice = random.Random(8)
    text = b"".join(dice.choice([b"a", b"bc", b"\n", b"\r", b"\r\n"]) for _ in range(500)) + b"end\n"
    for _ in range(50):
        cuts = sorted(dice.randrange(len(text)) for _ in range(60))
        parts = [text[low:high] for low, high in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert b"".join(shown(*parts, at_once=at_once)) == prefix_lines(b"> ", text)


@pytest.mark.parametrize("prefix", [b"", b"[0]:"])
def test_each_line_gets_the_prefix(prefix: bytes) -> None:
    """Empty lines get the prefix too, an empty prefix changes nothing."""
    assert prefix_lines(prefix, b"a\n\nb\r\n") == prefix + b"a\n" + prefix + b"\n" + prefix + b"b\r\n"


def test_a_prefix_is_one_line() -> None:
    """Unknown names stay as they are; a line break in the template, or in a host's name, becomes a space."""
    assert prefix_of("${host} ${rank}\n${what} $ ", {"host": "a\nb", "rank": 3})() == b"a b 3 ${what} $ "


def test_a_timestamp_has_milliseconds() -> None:
    """Also those that would round up to the next second."""
    assert timestamp(0.9999).endswith(b".999")
