"""Raw results (JSON lines) and the markdown table made of them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .goals import Samples, median_ratio, present
from .rows import Row


@dataclass(frozen=True)
class Circumstances:
    """Where and how a table was measured; the first line of a raw file."""

    date: str
    command: str
    launchers: dict[str, str]
    """Command template by key, a and b."""
    versions: str
    cpus: int


@dataclass(frozen=True)
class Result:
    """One run of one launcher for one row."""

    row: str
    launcher: str
    samples: list[float | None]
    """None: the launcher did not get so far."""
    error: str
    """Why a sample is None; empty if none is."""
    other_cpus: float
    """How many CPUs other programs used meanwhile."""


@dataclass
class Results:
    """A raw file, read back."""

    circumstances: Circumstances
    runs: list[Result] = field(default_factory=list)

    def samples(self, row: str, launcher: str) -> list[float | None]:
        return [sample for run in self.runs if (run.row, run.launcher) == (row, launcher) for sample in run.samples]

    def errors(self, row: str, launcher: str) -> dict[str, int]:
        """How often each error was seen."""
        counts: dict[str, int] = {}
        for run in self.runs:
            if run.error and (run.row, run.launcher) == (row, launcher):
                counts[run.error] = counts.get(run.error, 0) + 1
        return counts


def write_line(path: Path, record: Circumstances | Result) -> None:
    """Append one record to a raw file."""
    with open(path, "a") as file:
        file.write(json.dumps(asdict(record)) + "\n")


def read(path: Path) -> Results:
    """Read a raw file. Raises ValueError when its first line is not `Circumstances`."""
    first, *lines = path.read_text().splitlines()
    try:
        circumstances = Circumstances(**json.loads(first))
    except TypeError as error:
        raise ValueError(f"{path} does not begin with the circumstances of a benchmark: {error}") from error
    return Results(circumstances, [Result(**json.loads(line)) for line in lines])


def number(value: float) -> str:
    """Three significant digits, never in exponents."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def cell(samples: Samples, unit: str) -> str:
    """Median with extremes, and how many samples there are of all that were wanted."""
    if not samples:
        return "not run"
    values = present(samples)
    if not values:
        return f"0 of {len(samples)}"
    middle = number(statistics.median(values))
    return f"{middle} {unit} ({number(min(values))} to {number(max(values))}), {len(values)} of {len(samples)}"


def verdict(row: Row, results: Results) -> bool | None:
    """Whether the row's goal was reached; None when it has none, or the samples do not decide it."""
    a, b = results.samples(row.name, "a"), results.samples(row.name, "b")
    return row.goal.reached(a, b) if row.goal else None


def line(row: Row, results: Results) -> str:
    """One line of the table."""
    a, b = results.samples(row.name, "a"), results.samples(row.name, "b")
    ratio = median_ratio(a, b)
    reached = {True: "yes", False: "**no**", None: "-"}[verdict(row, results)]
    cells = (
        row.what,
        cell(a, row.unit),
        cell(b, row.unit),
        number(ratio) if ratio else "-",
        str(row.goal or "-"),
        reached,
    )
    return "| " + " | ".join(cells) + " |"


def failures(rows: Iterable[Row], results: Results) -> list[str]:
    """A list of the missing samples and their reasons."""
    found = []
    for row in rows:
        for key in ("a", "b"):
            found += [f"- {row.name}, {key}: {text} (x{n})" for text, n in results.errors(row.name, key).items()]
    return ["", "Missing samples:", "", *found] if found else []


def markdown(rows: Sequence[Row], results: Results) -> str:
    """The table, below the circumstances in which it was measured."""
    at = results.circumstances
    others = [run.other_cpus for run in results.runs] or [0.0]
    head = [
        f"Measured {at.date} with `{at.command}` on {at.cpus} CPUs; {at.versions}. ",
        f"a = `{at.launchers['a']}`, b = `{at.launchers['b']}`, runs alternating. ",
        f"Other work on the host meanwhile: {number(statistics.median(others))} CPUs (median), ",
        f"{number(max(others))} (worst).",
    ]
    table = [
        "| what | a: median (extremes), samples | b | b/a | goal | reached |",
        "|---|---|---|---|---|---|",
        *(line(row, results) for row in rows if any(run.row == row.name for run in results.runs)),
    ]
    return "\n".join(["".join(head), "", *table, *failures(rows, results)]) + "\n"
