"""What `elasticctl` prints: lines that steer no terminal, what workers wrote, and the last line of a failure."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn

import click

from ...rendezvous.text import printable

PROGRAM = "elasticctl"


def say(text: str, *, err: bool = False) -> None:
    """Print a line of an agent's or a job's text, or of our own. Control characters are escaped: what the agents of
    others send must not steer this terminal."""
    click.echo(printable(text), err=err)


def say_output(text: str, *, nl: bool = True) -> None:
    """Print what workers wrote: as it is into a file or a pipe; of what steers a terminal, colours only."""
    click.echo(printable(text, coloured=True) if sys.stdout.isatty() else text, nl=nl)


def fail(text: str, status: int) -> NoReturn:
    """Say why on stderr, and end the program with this status."""
    with contextlib.suppress(OSError):  # where stderr takes nothing either, the status says it
        say(f"{PROGRAM}: {text}", err=True)
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
