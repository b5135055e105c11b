"""`elastic-agent-watch advise`: how often to save, from what was measured."""

from __future__ import annotations

import itertools
import json
import os
import statistics
from collections.abc import Iterator
from typing import Any

import click

from ...agent.errors import UsageError
from ...rendezvous.text import count, duration
from ..commands import Asker, NoReading
from ..decisions.interval import Measured, cost, daly_s, failure_s, young_s
from ..table.quantities import time_s

LOSSES = ("failure", "departure")
"""Kinds of ends of rounds that lose training: a node that leaves takes its workers along."""


class _Time(click.ParamType[float]):
    """A length of time; a number alone is in seconds."""

    name = "TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value)
        seconds = time_s(text if not text.replace(".", "", 1).isdigit() else f"{text} s")
        if not seconds:
            self.fail(f"{text!r} is no time above 0, such as 40s, 3h or 90days", param, ctx)
        return seconds


TIME = _Time()


@click.command(context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.option("--save", type=TIME, help="How long training stands still for one save; from --checkpoints if given.")
@click.option("--every", type=TIME, help="How often it saves today; from --checkpoints if that is given.")
@click.option("--step", type=TIME, help="How long a step takes; from --checkpoints if that is given.")
@click.option("--run", type=TIME, help="How long the training lasts.")
@click.option("--between-failures", type=TIME, help="Mean time between failures; else from --failures and --observed.")
@click.option("--failures", type=click.IntRange(min=0), help="Failures of the whole job so far.")
@click.option("--observed", type=TIME, help="The running time in which they happened.")
@click.option("--events", type=click.Path(exists=True, dir_okay=False), help="Both, from the agent's file of events.")
@click.option("--restart", type=TIME, default=0.0, help="From a failure to the next step.")
@click.option("--checkpoints", type=click.Path(exists=True, file_okay=False), help="A directory of checkpoints.")
def advise(
    *,
    save: float | None,
    every: float | None,
    step: float | None,
    run: float | None,
    between_failures: float | None,
    failures: int | None,
    observed: float | None,
    events: str | None,
    restart: float,
    checkpoints: str | None,
) -> None:
    """Print how often to save: what saves cost, what a failure costs, and the best interval (Young, Daly)."""
    if checkpoints:
        seen_every, seen_step = of_checkpoints(checkpoints)
        every, step = every or seen_every, step or seen_step
        save = save or of_manifests(checkpoints)
    if save is None:
        raise UsageError("advise: give --save, or --checkpoints of the worker library, which measures its saves")
    if events:
        failures, observed = of_events(events)
    told = ""
    if between_failures is None and failures is not None and observed:
        between_failures = observed / max(1, failures)
        told = f"{count(failures, 'failure')} in {duration(observed)}"
        told += "" if failures else ", counted as 1: the time between failures is at least that"
    if between_failures is None and every is None:
        why = f"{checkpoints} has no two checkpoints, whose interval would be measured; " if checkpoints else ""
        raise UsageError(f"advise: {why}give --every, or --between-failures, or --failures with --observed")
    for line in lines_of(save, every, step, run, between_failures, restart, told):
        click.echo(line)


def lines_of(
    save: float,
    every: float | None,
    step: float | None,
    run: float | None,
    between_failures: float | None,
    restart: float = 0.0,
    told: str = "",
) -> Iterator[str]:
    """The report, line by line. Times in seconds."""
    if every is not None:
        at = f"{exact(every)}{steps(every, step)}"
        yield f"now: a save of {duration(save)} every {at} costs {share(save / every)} of the time"
        if run is not None:
            number = round(run / every)
            yield f"over {exact(run)}: {count(number, 'save')}, {exact(number * save)}, {share(number * save / run)}"
    if between_failures is None:
        yield "the best interval needs --between-failures, or --failures with --observed"
        return
    measured = Measured(save, between_failures, restart)
    yield f"a failure every {exact(between_failures)}{f' ({told})' if told else ''}"
    if every is not None:
        yield f"now: {spent(measured, every)}"
    for name, best in (("Young", young_s(measured)), ("Daly", daly_s(measured))):
        yield f"best ({name}): save every {duration(best)}{steps(best, step)}: {spent(measured, best)}"
    yield f"for the library: Every(seconds={max(1.0, daly_s(measured)):.0f})"


def spent(measured: Measured, every: float) -> str:
    """What an interval costs, and what a failure then costs."""
    shares, (mean, most) = cost(measured, every), failure_s(measured, every)
    return (
        f"{share(shares.total)} of the time ({share(shares.saves)} saves, {share(shares.lost)} repeated steps, "
        f"{share(shares.restarts)} restarts); a failure costs {duration(mean)} on average, {duration(most)} at most"
    )


def share(part: float) -> str:
    """`0.37 %`."""
    return f"{100 * part:.2f} %"


def steps(every: float, step: float | None) -> str:
    """` (1,200 steps)`, where the time of a step is known."""
    return f" ({max(1, round(every / step)):,} steps)" if step else ""


def exact(length_s: float) -> str:
    """A length of time in its largest whole unit: `8 h`, `90 days`; else as `duration`."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if length_s >= 2 * size and length_s % size == 0:
            return f"{length_s / size:.0f} {unit}"
    return duration(length_s)


def of_checkpoints(path: str) -> tuple[float | None, float | None]:
    """(seconds between saves, seconds a step), medians over the last checkpoints of a directory; None if unknown."""
    found = _ask("checkpoints", path)
    # Copies, and file systems that count whole seconds, have several of one time.
    pairs = [(earlier, later) for earlier, later in itertools.pairwise(found) if later[0] > earlier[0]]
    gaps = [later[0] - earlier[0] for earlier, later in pairs]
    paces = [(later[0] - earlier[0]) / (later[2] - earlier[2]) for earlier, later in pairs if later[2] > earlier[2]]
    return (statistics.median(gaps) if gaps else None), (statistics.median(paces) if paces else None)


def of_manifests(path: str) -> float | None:
    """Seconds for which a save held the training up, the median of what the worker library wrote down; None without."""
    held = [line[0] for line in _ask("holds", path)]
    return statistics.median(held) if held else None


def _ask(question: str, path: str) -> list[list[float]]:
    try:
        return Asker().ask(question, os.path.abspath(path))
    except NoReading as error:
        raise UsageError(f"--checkpoints {path}: {error}") from None


def _of_line(event: dict[str, Any]) -> dict[str, Any]:
    """What tells starts and failures apart. Raises ValueError, KeyError, TypeError where it is none of an agent's."""
    at_s = float(event["at_s"])
    end = event.get("ended") or {"kind": ""}
    return {
        "at_s": at_s,
        "time_s": float(event.get("time_s") or at_s),
        "what": str(event["what"]),
        "node": str(event.get("node")),
        "version": int(event.get("version") or 0),
        "lost": int(end["round"]) if end["kind"] in LOSSES else 0,
    }


def of_events(path: str) -> tuple[int, float]:
    """(failures, seconds) of the agent's file of events and those put aside for it: rounds that failed or lost a node,
    and from the first event to the last of each start. Raises UsageError."""
    from ..ctl.causes import starts  # here: a program that watches for weeks needs none of it
    from ..event_lines import files_of_events

    events: list[dict[str, Any]] = []
    for each in files_of_events(path):
        with open(each, encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    events.append(_of_line(json.loads(line)))
                except (ValueError, KeyError, TypeError):
                    continue  # a line of another program
    if len(events) < 2:
        raise UsageError(f"--events {path}: fewer than two events; give --failures and --observed")
    failures, observed_s = 0, 0.0
    for start in starts(events):  # of those that share the file: rounds are counted anew in each
        failures += len({event["lost"] for event in start if event["lost"]})
        times = [event["at_s"] for event in start]
        observed_s += max(times, default=0.0) - min(times, default=0.0)
    return failures, observed_s
