"""Where `explain` and `report` have a job's events from, and the report's file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import click

from ..event_lines import events_in, files_of_events, normal
from . import views
from .call import Message
from .causes import starts
from .find import Agent
from .printing import say


def events(files: Sequence[str], agents: Callable[[], Sequence[Agent]]) -> list[Message]:
    """Those of these files; without any, those that the agents of the job keep. Raises BadParameter,
    AgentUnreachable."""
    try:
        if not files:
            return views.events_kept_by(agents())
        # What matches `events-*` may be named beside the file for which it was put aside.
        each_once = {os.path.realpath(each): each for path in files for each in files_of_events(path)}
        return [event for path in each_once.values() for event in events_in(path, lambda line: say(line, err=True))]
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def write_report(output: str, found: Sequence[Message], files: Sequence[str]) -> None:
    """The page of these events as a file. Raises BadParameter where it cannot be written."""
    from ..page.render import report

    where = f"from {', '.join(map(os.path.basename, files))}" if files else "from running agents"
    # Each start of the job numbers its rounds, and names its events, anew.
    told = starts([normal(event) for event in found])
    every = [{**event, "start": number} for number, start in enumerate(told, 1) for event in start]
    content = report(every, f"written {time.strftime('%Y-%m-%d %H:%M:%S')}, {where}")
    try:
        with click.open_file(output, "wb") as file:
            file.write(content)
    except OSError as error:
        raise click.BadParameter(f"{output}: {error.strerror}") from None
