"""Command line: `python -m benchmarks.rendezvous_scale`; see ../README.md."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from .. import processes
from ..launchers import ROOT
from . import chart, measure, report
from .children import Failed
from .measure import Figures, Setting

RESULTS = ROOT / "build" / "bench"
CHART = ROOT / "docs" / "rendezvous-scale.svg"
OURS, OURS_ETCD, TORCH = "elastic-agent on c10d", "elastic-agent on etcd", "torch's dynamic rendezvous"


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="python -m benchmarks.rendezvous_scale", description=__doc__, allow_abbrev=False)
    out.add_argument("--c10d", type=_sizes, default=_sizes("8,16,32,64,128,256,512,1000"), help="numbers of nodes")
    out.add_argument("--etcd", type=_sizes, default=(), help="the same on etcd (default: none)")
    out.add_argument("--torch", type=_sizes, default=_sizes("8,16,32,64,128,256,512"), help="the same for torch")
    out.add_argument("--torch-limit", type=float, default=180.0, metavar="S", help="stop torch's after one so long")
    out.add_argument("--per-process", type=int, default=250, help="participants in one process (default: 250)")
    out.add_argument("--steady", type=float, default=10.0, metavar="S", help="how long requests are counted at rest")
    out.add_argument("--lease", type=float, default=60.0, metavar="S", help="a participant without heartbeat is lost")
    out.add_argument("--chart", type=Path, help=f"where to draw the curves, such as {CHART.relative_to(ROOT)}")
    out.add_argument("--from", type=Path, dest="earlier", metavar="JSON", help="measure nothing; show this file again")
    return out


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(int(part) for part in text.split(",") if part)
    if any(nodes < 3 for nodes in sizes):
        raise argparse.ArgumentTypeError(f"{min(sizes)} nodes: at least 3 are needed, as one of them dies")
    return sizes


def run(args: argparse.Namespace) -> int:
    setting = Setting(args.per_process, args.steady, args.lease)
    began = f"{time.strftime('%Y-%m-%d %H:%M')}, {measure.load()}"
    print(began, flush=True)
    found: dict[str, dict[int, Figures]] = {OURS: {}, OURS_ETCD: {}, TORCH: {}}
    for nodes in sorted({*args.c10d, *args.etcd, *args.torch}):  # beside each other, so that a busy minute affects all
        if nodes in args.c10d:
            _one(found[OURS], OURS, nodes, partial(measure.ours, "c10d", nodes, setting))
        if nodes in args.etcd:
            _one(found[OURS_ETCD], OURS_ETCD, nodes, partial(measure.ours, "etcd", nodes, setting))
        last = max((each["join_s"] for each in found[TORCH].values()), default=0.0)
        if nodes in args.torch and last > args.torch_limit:
            print(f"{TORCH}, {nodes} nodes: left out, as fewer took {last:.0f} s", flush=True)
        elif nodes in args.torch:
            _one(found[TORCH], TORCH, nodes, partial(measure.torchs, nodes, setting))
    RESULTS.mkdir(parents=True, exist_ok=True)
    raw = RESULTS / time.strftime("scale-%Y%m%d-%H%M%S.json")
    raw.write_text(json.dumps({"began": began, "ended": measure.load(), "found": found}))
    print(f"raw results: {raw}")
    return _show(found, args.chart)


def _one(into: dict[int, Figures], name: str, nodes: int, take: Callable[[], Figures]) -> None:
    try:
        into[nodes] = take()
    except Failed as error:
        print(f"{name}, {nodes} nodes: {error}", flush=True)
        return
    figures = into[nodes]
    print(f"{name}, {nodes} nodes: " + ", ".join(f"{key} {value:.4g}" for key, value in figures.items()), flush=True)


def _show(found: dict[str, dict[int, Figures]], where: Path | None) -> int:
    series = {name: each for name, each in found.items() if each}
    print("\n" + report.table(series))
    if where is not None:
        where.write_text(chart.draw(series))
        print(f"the curves: {where}")
    missed = [line for name, each in series.items() if name != TORCH for line in report.misses(name, each)]
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


def main() -> int:
    args = parser().parse_args()
    if args.earlier is not None:
        read = json.loads(args.earlier.read_text())["found"]
        found = {name: {int(nodes): row for nodes, row in each.items()} for name, each in read.items()}
        return _show(found, args.chart)
    return processes.guarded(lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
