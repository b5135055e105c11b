"""Stacks of processes that stand still: by py-spy, else by their own faulthandler, else what the kernel tells.

Processes with equal stacks are one group, and the smallest group comes first: the odd rank is most often the cause.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...rendezvous.text import count
from ..commands import Asker, NoAnswer, signal_process
from ..readings.processes import rank_of, stat

PROCESSES_MAX = 64
"""Most processes whose stacks are taken at once; each takes some 10 ms."""
DUMP_S = 10.0
"""How long py-spy may take for one process."""


@dataclass(frozen=True)
class Stacks:
    """Of one process."""

    who: str
    text: str
    key: str
    """Equal for processes that stand at the same place."""
    at: str
    """The innermost place, for one line."""


def dump(pids: Sequence[int], folder: str, signal_name: str = "") -> str:
    """Save the stacks of these processes in a new file of the folder. Returns one line: where, and who is odd."""
    taken = [take(pid, signal_name) for pid in pids[:PROCESSES_MAX]]
    if not taken:
        return "no stacks: no process matches"
    groups: dict[str, list[Stacks]] = {}
    for each in taken:
        groups.setdefault(each.key, []).append(each)
    ordered = sorted(groups.values(), key=len)
    path = Path(folder) / f"stacks-{time.strftime('%Y%m%d-%H%M%S')}-{pids[0]}.txt"
    summary = "; ".join(f"{_members(group)} in {group[0].at}" for group in ordered[:3])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n\n".join(_block(group) for group in ordered) + "\n")
    except OSError as error:
        return f"stacks of {count(len(taken), 'process')} could not be written to {path}: {error.strerror}; {summary}"
    return f"stacks in {path}: {summary}"


def _members(group: Sequence[Stacks]) -> str:
    return ", ".join(one.who for one in group[:4]) + (f" and {len(group) - 4} more" if len(group) > 4 else "")


def _block(group: Sequence[Stacks]) -> str:
    return f"{', '.join(each.who for each in group)}: in {group[0].at}\n\n" + "\n\n".join(
        f"{each.who}\n{each.text.rstrip()}" for each in group
    )


def take(pid: int, signal_name: str = "") -> Stacks:
    """The stacks of one process, by the first way that works."""
    who, tool = rank_of(pid), py_spy()
    why = "py-spy is not installed"
    if tool:
        found = stat(pid)
        # A process that is stopped already cannot be stopped for the look, and need not be.
        how = ["--nonblocking"] if found and found.state in "Tt" else []
        try:
            return of_py_spy(who, Asker().run([tool, "dump", *how, "--pid", str(pid)], DUMP_S))
        except NoAnswer as error:
            why = str(error)
    if signal_name and signal_process(pid, signal_name):
        text = f"{why}; {signal_name} was sent: its faulthandler writes the stacks to where the script said"
        return Stacks(who, f"{text}\n{kernel(pid)}", f"{signal_name} sent", f"its own log, by {signal_name}")
    text = kernel(pid)
    return Stacks(who, f"{why}; what the kernel tells:\n{text}", text, text.partition("\n")[0])


def py_spy() -> str:
    """The path of py-spy: on PATH, or beside this interpreter; empty where there is none."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return shutil.which("py-spy") or (beside if os.access(beside, os.X_OK) else "")


def of_py_spy(who: str, text: str) -> Stacks:
    """From the output of `py-spy dump`: processes are compared by the frames of their main threads."""
    threads = re.split(r"^(?=Thread )", text, flags=re.MULTILINE)[1:]
    main = next(
        (thread for thread in threads if '"MainThread"' in thread.partition("\n")[0]), threads[0] if threads else ""
    )
    frames = [line.strip() for line in main.splitlines()[1:] if line.startswith("    ")]
    frames = [frame for frame in frames if re.search(r"\(.+\)$", frame)]
    return Stacks(who, text, "\n".join(frames) or text, frames[0] if frames else "no Python frame")


def kernel(pid: int) -> str:
    """The state of a process, where in the kernel it waits, and its stack there as far as that may be read."""
    told = []
    for name, pattern in (("status", r"^State:\s*(.+)$"), ("wchan", r"(\S+)"), ("stack", r"(?s)(.+)")):
        try:
            match = re.search(pattern, Path(f"/proc/{pid}/{name}").read_text(errors="replace"), re.MULTILINE)
        except OSError:
            continue  # it has ended, or this kernel does not tell
        if match:
            told.append(f"{name}: {match[1].strip()}")
    return "\n".join(told) or "it has ended"
