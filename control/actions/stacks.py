"""Stacks of processes that stand still: by py-spy, else by their own faulthandler, else from /proc.

Processes with equal stacks are one group, and the smallest group comes first: the odd rank is most often the cause.
Groups that wait for others, in a collective, come last. Of the first groups one process each is looked at once more,
with its native frames.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ...proto.frozen import dataclass, replace
from ...rendezvous.text import count
from ..answers import ask
from ..commands import Asker, NoReading, signal_process
from ..readings.processes import rank_of, stat

PROCESSES_MAX = 64
"""Most processes whose stacks are taken at once; each takes some 10 ms."""
AT_ONCE_MAX = 8
"""Most of them at a time."""
DUMP_S = 10.0
"""How long py-spy may take for one process."""
NATIVE_S = 10.0
"""The same with native frames, for which it reads the symbols of torch's libraries."""
GROUPS_NAMED = 3
"""Groups that the summary names, and of each of which native frames are taken."""
WAITS = re.compile(r"\btorch/(distributed/|nn/parallel/|autograd/graph\.py)")
"""An innermost frame in which a rank waits for others."""


@dataclass(frozen=True)
class ProcessStack:
    """Stack of one process, and where it stands."""

    who: str
    text: str
    key: str
    """Equal for processes that stand at the same place."""
    at: str
    """The innermost place, for one line."""
    pid: int = 0
    waits: bool = False
    """It waits for other ranks there."""
    rank: int = -1
    """Its rank, where it is known to be a worker's."""


@dataclass(frozen=True)
class Dump:
    """Stacks of all processes, in groups of equal ones."""

    line: str
    """Where the stacks are, and who is odd."""
    groups: tuple[tuple[ProcessStack, ...], ...] = ()
    """Processes with equal stacks; the odd group first."""

    @property
    def summary(self) -> str:
        """Who stands where, the odd one first."""
        return "; ".join(f"{_members(group)} in {group[0].at}" for group in self.groups[:GROUPS_NAMED])

    @property
    def waits(self) -> bool:
        """Whether all of them wait for others."""
        return all(each.waits for group in self.groups for each in group)


def dump(pids: Sequence[int], folder: str, signal_name: str = "") -> str:
    """Save the stacks of these processes in a new file of the folder. Returns one line: where, and who is odd."""
    found = stacks_of(pids, signal_name)
    return save(found, folder, *native(found)).line


def stacks_of(pids: Sequence[int], signal_name: str = "", paths: Mapping[int, str] | None = None) -> Dump:
    """The stacks of these processes, as many at a time as there are processors. `paths`: of the sockets at which some
    of them answer, by process id."""
    wanted = pids[:PROCESSES_MAX]
    rest, others = iter(wanted), []
    found: dict[int, ProcessStack] = {}

    def one(pid: int) -> ProcessStack:
        return take(pid, signal_name, (paths or {}).get(pid, ""))

    def look() -> None:
        for pid in rest:
            found[pid] = one(pid)

    for _ in range(min(len(os.sched_getaffinity(0)), AT_ONCE_MAX, len(wanted)) - 1):
        other = threading.Thread(target=look, name="elastic-agent-stacks", daemon=True)
        try:
            other.start()
        except RuntimeError:
            break  # this host refuses a thread: fewer at a time
        others.append(other)
    look()
    for other in others:
        other.join()
    return grouped([found[pid] if pid in found else one(pid) for pid in wanted])


def grouped(taken: Iterable[ProcessStack]) -> Dump:
    """Those with equal stacks together, the smallest group first, and those that wait for others last."""
    groups: dict[str, list[ProcessStack]] = {}
    for each in taken:
        groups.setdefault(each.key, []).append(each)
    ordered = sorted(groups.values(), key=lambda group: (all(each.waits for each in group), len(group)))
    found = Dump("", tuple(tuple(group) for group in ordered))
    return replace(found, line=found.summary or "no stacks: no process matches")


def save(found: Dump, folder: str, *more: str) -> Dump:
    """Write them into a new file of the folder, and `more` behind them."""
    if not found.groups:
        return found
    first = min(each.pid for group in found.groups for each in group) or os.getpid()
    path = Path(folder) / f"stacks-{time.strftime('%Y%m%d-%H%M%S')}-{first}.txt"
    parts = [*(_block(group) for group in found.groups), *more]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n\n".join(part for part in parts if part) + "\n")
    except OSError as error:
        taken = count(sum(len(group) for group in found.groups), "process")
        why = f"cannot write the stacks of {taken} to {path}: {error.strerror}"
        return replace(found, line=f"{why}; {found.summary}")
    return replace(found, line=f"stacks in {path}: {found.summary}")


def native(found: Dump, *, waiting: bool = True) -> list[str]:
    """Native frames of one process of each of the first groups; without `waiting`, not of those that wait for others.
    The processes are of this host."""
    if not (tool := py_spy()):
        return []
    parts = []
    for group in found.groups[:GROUPS_NAMED]:
        if group[0].waits and not waiting:
            continue
        try:
            text = Asker().run(
                [tool, "dump", "--native", *_blocking(group[0].pid), "--pid", str(group[0].pid)], NATIVE_S
            )
        except NoReading as error:
            text = str(error)
        parts.append(f"{group[0].who}, with native frames\n{text.rstrip()}")
    return parts


def _members(group: Sequence[ProcessStack]) -> str:
    return ", ".join(one.who for one in group[:4]) + (f" and {len(group) - 4} more" if len(group) > 4 else "")


def _block(group: Sequence[ProcessStack]) -> str:
    return f"{', '.join(each.who for each in group)}: in {group[0].at}\n\n" + "\n\n".join(
        f"{each.who}\n{each.text.rstrip()}" for each in group if each.text
    )


def take(pid: int, signal_name: str = "", path: str = "") -> ProcessStack:
    """The stacks of one process, by the first way that works. `path`: of the socket at which it answers."""
    who, tool = rank_of(pid), py_spy()
    why = "py-spy is not installed"
    if tool:
        try:
            found = of_py_spy(who, Asker().run([tool, "dump", *_blocking(pid), "--pid", str(pid)], DUMP_S))
            return replace(found, pid=pid)
        except NoReading as error:
            why = str(error)
    if path and (answer := ask(path)) is not None and answer.stacks:
        return replace(of_faulthandler(who, answer.stacks), pid=pid)
    return replace(_last_resort(pid, who, why, signal_name), pid=pid)


def _blocking(pid: int) -> list[str]:
    """A process that is stopped already cannot be stopped for the look, and need not be."""
    found = stat(pid)
    return ["--nonblocking"] if found and found.state in "Tt" else []


def _last_resort(pid: int, who: str, why: str, signal_name: str) -> ProcessStack:
    if signal_name and signal_process(pid, signal_name):
        text = f"{why}; sent {signal_name}: its faulthandler writes the stacks to the file that the script gave it"
        return ProcessStack(who, f"{text}\n{kernel(pid)}", f"{signal_name} sent", f"its own log, by {signal_name}")
    text = kernel(pid)
    return ProcessStack(who, f"{why}; state in /proc:\n{text}", text, text.partition("\n")[0])


def py_spy() -> str:
    """The path of py-spy: on PATH, or beside this interpreter; empty where there is none."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return shutil.which("py-spy") or (beside if os.access(beside, os.X_OK) else "")


def of_py_spy(who: str, text: str) -> ProcessStack:
    """From the output of `py-spy dump`: processes are compared by the frames of their main threads."""
    threads = re.split(r"^(?=Thread )", text, flags=re.MULTILINE)[1:]
    main = next(
        (thread for thread in threads if '"MainThread"' in thread.partition("\n")[0]), threads[0] if threads else ""
    )
    frames = [line.strip() for line in main.splitlines()[1:] if line.startswith("    ")]
    frames = [frame for frame in frames if re.search(r"\(.+\)$", frame)]
    at = frames[0] if frames else "no Python frame"
    return ProcessStack(who, text, "\n".join(frames) or text, at, waits=bool(WAITS.search(at)))


def of_faulthandler(who: str, text: str) -> ProcessStack:
    """From what `faulthandler.dump_traceback` writes: the main thread is the last one."""
    main = re.split(r"^(?=(?:Current thread|Thread) 0x)", text, flags=re.MULTILINE)[-1]
    frames = [
        f"{name} ({file}:{line})" for file, line, name in re.findall(r'^  File "(.+)", line (\d+) in (.+)$', main, re.M)
    ]
    at = frames[0] if frames else "no Python frame"
    return ProcessStack(who, text, "\n".join(frames) or text, at, waits=bool(WAITS.search(at)))


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
