"""What `elasticctl` prints: lines that steer no terminal, what workers wrote, and the last line of a failure."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

import click

PROGRAM = "elasticctl"
UNWRITTEN = 74
"""The status where nothing can be printed, or a file not be read; EX_IOERR of sysexits.h."""
INTERRUPTED = 130
"""The status after Ctrl-C, by which whoever follows something ends it; as a shell shows it of any program."""
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What a terminal may obey or reorder, but for the end of a line and the tab."""
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


class Commands(click.Group):
    """Commands that end by Ctrl-C, or once nobody reads what they print, with a status of its own, and without a word
    of click's."""

    def invoke(self, context: click.Context) -> Any:  # noqa: ANN401 - as its base
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except BrokenPipeError:  # its reader has enough, as `head` has; click's 1 would be an agent that refuses
            _drop_unwritten()
            sys.exit(UNWRITTEN)


def say(text: str, *, err: bool = False) -> None:
    """Print a line of an agent's or a job's text, or of our own. Control characters are escaped: what the agents of
    others send must not steer this terminal."""
    click.echo(printable(text), err=err)


def say_line(text: str, *, odd: bool) -> None:
    """Print one line of a screen, an odd one bold and in colour on a terminal that knows them. A line's end within it,
    as a run id may have one, is escaped too."""
    text = printable(text).replace("\n", "\\n")
    if odd and os.environ.get("TERM") != "dumb":
        text = click.style(text, bold=True, fg=None if os.environ.get("NO_COLOR") else "yellow")
    click.echo(text)


def is_screen() -> bool:
    """Whether stdout is a terminal that can be cleared and that knows colours."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def begin_screen() -> None:
    """Before a live screen is drawn anew: clear the last one; into a file, the time stands above each."""
    if is_screen():
        click.clear()
    else:
        click.echo(time.strftime("%Y-%m-%d %H:%M:%S"))


def say_output(text: str, *, nl: bool = True) -> None:
    """Print what workers wrote: as it is into a file or a pipe; of what steers a terminal, colours only."""
    click.echo(printable(text, coloured=True) if sys.stdout.isatty() else text, nl=nl)


def say_prefixed(part: Mapping[str, Any], unfinished: dict[tuple[int, str], str]) -> None:
    """Print the lines that a part of the output of one of several ranks completes. `unfinished`: the beginnings of
    others, by rank and stream."""
    say_missed(part)
    key = (part["rank"], part["stream"])
    *whole, rest = (unfinished.get(key, "") + part["text"]).split("\n")
    unfinished[key] = rest
    for line in whole:
        say_output(f"[{part['rank']}] {line}")


def said_if_none(parts: Iterable[Mapping[str, Any]], rank: str) -> Iterator[Mapping[str, Any]]:
    """These parts of the output of a rank, or of `all`; where there is none, a line on stderr says why."""
    none = True
    for part in parts:
        none = False
        yield part
    if none:
        whose = "any rank" if rank == "all" else f"rank {rank}"
        why = "it has written nothing, or --local-ranks-filter leaves it out"
        say(f"{PROGRAM}: there is no output of {whose}: {why}", err=True)


def say_missed(part: Mapping[str, Any]) -> None:
    """Say on stderr what is missing before a part of the output."""
    if part["missedBytes"]:
        where = f"; all of it is in {part['file']}" if part["file"] else ""
        say(f"({part['missedBytes']:.0f} bytes of rank {part['rank']} were left out here{where})", err=True)


def open_closed_streams() -> None:
    """Where this program was started with stdout or stderr closed (`>&-`), what it prints there goes nowhere. What the
    encoding of a stream has not, as Latin-1 has no bar of tqdm's, is escaped there."""
    for name, least in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            # In the place of the closed one, so that no file or socket that is opened later is printed into.
            while (number := os.open(os.devnull, os.O_WRONLY)) < least:
                pass
            setattr(sys, name, os.fdopen(number, "w"))
        getattr(sys, name).reconfigure(errors="backslashreplace")


def fail(text: str, status: int, program: str = PROGRAM) -> NoReturn:
    """Say why on stderr, and end the program with this status."""
    with contextlib.suppress(OSError):  # where stderr takes nothing either, the status says it
        say(f"{program}: {text}", err=True)
    _drop_unwritten()
    sys.exit(status)


def _drop_unwritten() -> None:
    """What stdout does not take would be tried again at the end of the process, which then ends with 120."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nothing, stream.fileno())
    os.close(nothing)


def printable(text: str, *, coloured: bool = False) -> str:
    """The text with its control characters escaped (`\\x1b`), for a terminal: whoever wrote it may not be trusted with
    one. `coloured`: colours and the return to the start of a line are left, as in what workers write."""
    if not coloured:
        return _CONTROL.sub(_escaped, text)
    parts, at = [], 0
    for colour in _COLOUR.finditer(text):
        parts += [text[at : colour.start()], colour[0]]
        at = colour.end()
    parts.append(text[at:])
    return "".join(part if number % 2 else _CONTROL.sub(_but_return, part) for number, part in enumerate(parts))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _but_return(found: re.Match[str]) -> str:
    return found[0] if found[0] == "\r" else _escaped(found)
