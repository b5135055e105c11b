"""Runs rows of the table, a b a b ..., until each launcher has its samples."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from importlib import metadata
from itertools import islice
from pathlib import Path

from .launchers import Launcher
from .report import Circumstances, Result, number, write_line
from .rows import Row
from .run import BenchError, Run


def torch_version() -> str:
    """The version of the torch that this interpreter would import, without importing it."""
    try:
        return "torch " + metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "no torch"


def circumstances(launchers: Sequence[Launcher]) -> Circumstances:
    """Where and how a table is measured now."""
    return Circumstances(
        date=time.strftime("%Y-%m-%d %H:%M"),
        command=" ".join(["python -m benchmarks", *sys.argv[1:]]),
        launchers={launcher.key: launcher.template for launcher in launchers},
        versions=f"{torch_version()}, Python {platform.python_version()}, Linux {platform.release().split('-')[0]}",
        cpus=os.cpu_count() or 1,
    )


def run_once(row: Row, launcher: Launcher, limit: int) -> Result:
    """One run, for at most `limit` samples. A missing sample ends the run and is recorded as None."""
    samples: list[float | None] = []
    error = ""
    with Run(launcher) as run:
        try:
            samples.extend(islice(row.measure(run), limit))
        except BenchError as why:
            samples.append(None)
            error = str(why)
    return Result(row.name, launcher.key, samples, error, round(run.other_cpus, 3))


def run_row(row: Row, launchers: Sequence[Launcher], wanted: Sequence[int], raw: Path) -> None:
    """Run one row until all samples are taken; append each run to the raw file."""
    left = {launcher.key: count for launcher, count in zip(launchers, wanted, strict=True)}
    while any(left.values()):
        for launcher in launchers:
            if not left[launcher.key]:
                continue
            result = run_once(row, launcher, left[launcher.key])
            left[launcher.key] -= len(result.samples)
            write_line(raw, result)
            shown = " ".join("-" if sample is None else number(sample) for sample in result.samples)
            print(f"{time.strftime('%H:%M:%S')} {row.name} {launcher.key}: {shown} {result.error}".rstrip(), flush=True)


def warm_up(launchers: Iterable[Launcher], row: Row) -> None:
    """Run each launcher once without counting it, to compile bytecode and fill the page cache. Raises BenchError if one
    cannot start a worker."""
    for launcher in launchers:
        result = run_once(row, launcher, 1)
        if result.error:
            raise BenchError(f"launcher {launcher.key} ({launcher.template}) cannot start a worker: {result.error}")
