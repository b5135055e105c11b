"""A disk that fails, and a process that is killed, at every call to the system of a save, its retention and a start.

For each form of a checkpoint and each fault, a child process does the same thing once for every call that it makes, and
its n-th call fails. Afterwards, with a disk that works, the newest checkpoint must load with what was saved in it, the
one before it must be there, and the next save must succeed.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

import torch

from elastic_agent.worker.checkpoints.copies import Directory, fetch, send
from elastic_agent.worker.checkpoints.fence import Claim
from elastic_agent.worker.checkpoints.files import Content
from elastic_agent.worker.checkpoints.folder import Folder, Retention
from elastic_agent.worker.checkpoints.manifest import Manifest
from elastic_agent.worker.checkpoints.pieces import divide
from elastic_agent.worker.checkpoints.tensor_files import fits_safetensors
from elastic_agent.worker.checkpoints.writer import Order, write
from elastic_agent.worker.persistence import load_states

from .real import pool_of

CALLS = (
    *("open", "read", "preadv", "write", "fsync", "close", "mkdir", "rename", "unlink", "rmdir"),
    *("stat", "lstat", "fstat", "scandir", "statvfs"),
)
"""All that a checkpoint asks of the system goes through these functions of `os`."""
FAULTS = ("SIGKILL", "ENOSPC", "EIO")
FORMS = ("whole", "pieces", "safetensors")
ACTS = ("save", "start", "copy", "restore")
"""A save with its retention; a start, which claims, sweeps, verifies and loads; a copy to slower storage; and back."""

_RETENTION = Retention(newest=2)
_DONE, _TOLD, _WRONG = 0, 5, 6
"""How the child ends: it did all of it; it raised what a caller is told; something else."""


@dataclass
class Faults:
    """What the faults of one kind came to."""

    points: int = 0
    wrong: list[str] = field(default_factory=list)


def play(form: str, act: str, fault: str, every: int = 1) -> Faults:
    """One fault at every call of one act on checkpoints of one form, or at every `every`-th."""
    faults = Faults()
    with _made(form, act) as made:
        number = random.Random(f"{form} {act} {fault}").randrange(every) + 1
        while True:
            with _copied(made) as place:
                ended = _try(place, form, act, fault, number)
                if ended == _DONE and not (place / "failed").exists():
                    return faults
                faults.points += 1
                if wrong := _judge(place, form, act, ended):
                    faults.wrong.append(f"{form}, {act}, {fault} at call {number}: {wrong}")
            number += every


def state_of(step: int) -> dict[str, Any]:
    """A state whose every number says of which step it is."""
    net = {f"layer{number}": torch.full((300, 8), float(step)) for number in range(2)}
    moments = {
        number: {"step": torch.tensor(float(step)), "m": tensor * 2} for number, tensor in enumerate(net.values())
    }
    return {"model": net, "optimizer": {"state": moments, "param_groups": [{"lr": 0.1, "params": [0, 1]}]}}


def save(folder: Folder, step: int, form: str, claim: Claim) -> Path:
    """Writes the checkpoint of a step, and removes what retention does not keep."""

    def manifest(contents: dict[str, Content]) -> Manifest:
        return Manifest(step, claim.token, 0, {}, {"world_size": 1}, f"{step:064x}", contents)

    takes = fits_safetensors if form == "safetensors" else None
    if form == "whole":
        state = divide(state_of(step), (0, 1), lambda tensor: False)
    else:
        state = divide(state_of(step), (0, 1), takes)
    order = Order(step, state, {"ledger.json": b"{}"}, manifest, safetensors=form == "safetensors")
    named = write(folder, claim, order)
    assert named is not None
    folder.retain(_RETENTION, claim.token)
    return named


def load(path: Path) -> int:
    """The step that every number in a checkpoint says. Raises AssertionError where they differ."""
    found, numbers = load_states(path, Manifest.read(path), {}), set()
    for tensor in found["model"].values():
        numbers |= set(tensor.unique().tolist())
    for moments in found["optimizer"]["state"].values():
        numbers |= {moments["step"].item(), *(moments["m"] / 2).unique().tolist()}
    assert len(numbers) == 1, f"numbers of steps {numbers} in one checkpoint"
    return int(numbers.pop())


def _quiet(path: Path) -> Folder:
    return Folder(path / "checkpoints", lambda text: None)


@contextmanager
def _made(form: str, act: str) -> Iterator[Path]:
    """Checkpoints of steps 1 and 2, and a fence; before a restore, copies of them instead."""
    place = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        folder, claim = _quiet(place), Claim("before")
        folder.claim(claim)
        for step in (1, 2):
            named = save(folder, step, form, claim)
            if act == "restore":
                send(Directory(place / "copies"), named)
        if act == "restore":
            shutil.rmtree(folder.path)
            folder.path.mkdir()
        yield place
    finally:
        shutil.rmtree(place)


@contextmanager
def _copied(made: Path) -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="fault-", dir=made.parent))
    try:
        shutil.copytree(made, place, dirs_exist_ok=True)
        yield place
    finally:
        shutil.rmtree(place)


def _try(place: Path, form: str, act: str, fault: str, number: int) -> int:
    """Forks a child whose number-th call fails. Gives its exit status, or minus its signal."""
    pid = os.fork()
    if pid == 0:
        _child(place, form, act, fault, number)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _child(place: Path, form: str, act: str, fault: str, number: int) -> NoReturn:
    status = _WRONG
    try:
        _fail_at(place, number, fault)
        _act(place, form, act)
        status = _DONE
    except OSError:
        status = _TOLD
    except BaseException as error:  # noqa: BLE001 - a forked process must not go on with its parent's program
        (place / "wrong").write_text(repr(error))
    finally:
        os._exit(status)


def _act(place: Path, form: str, act: str) -> None:
    folder, claim = _quiet(place), Claim("now")
    if act == "save":
        save(folder, 3, form, Claim("before"))
    elif act == "copy":
        send(Directory(place / "copies"), folder.path / "step-000002")
    else:
        folder.claim(claim)
        folder.remove_leftovers(claim.token)
        if act == "restore":
            found = fetch(Directory(place / "copies"), folder, claim.token, lambda text: None)
        else:
            found = folder.newest()
        assert found is not None, "no checkpoint is found"
        assert load(found[0]) == found[1].step


def _fail_at(place: Path, number: int, fault: str) -> None:
    """In a forked child: its number-th call to the system fails so."""
    count = 0
    for name in CALLS:
        real = getattr(os, name)

        def counted(*arguments: Any, real: Callable[..., Any] = real, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                with open(place / "failed", "wb"):  # which is not counted: only the functions of os are
                    pass
                if fault == "SIGKILL":
                    os.kill(os.getpid(), signal.SIGKILL)
                code = getattr(errno, fault)
                raise OSError(code, os.strerror(code))
            return real(*arguments, **named)

        setattr(os, name, counted)


def _judge(place: Path, form: str, act: str, ended: int) -> str:
    """What is wrong after a fault, with a disk that works again; empty if nothing is."""
    if ended not in (_DONE, _TOLD, -signal.SIGKILL):
        said = (place / "wrong").read_text() if (place / "wrong").exists() else ""
        return f"the child ended with {ended}: {said}"
    folder, claim = _quiet(place), Claim("after")
    try:
        folder.claim(claim)
        folder.remove_leftovers(claim.token)
        found = folder.newest()
        if found is None and act == "restore":
            found = fetch(Directory(place / "copies"), folder, claim.token, lambda text: None)
        least = {"save": (2, 3), "restore": (1, 2)}.get(act, (1, 2))
        if found is None or found[1].step not in least:
            return f"the newest checkpoint is {found and found[1].step}"
        if load(found[0]) != found[1].step:
            return f"step {found[1].step} holds numbers of step {load(found[0])}"
        return _before(folder, found[1].step, act) or _next(place, folder, form, claim)
    except Exception as error:  # noqa: BLE001 - whatever it is, a start has failed
        return f"the next start failed: {error!r}"


def _before(folder: Folder, step: int, act: str) -> str:
    """The checkpoint before the newest one must be whole, too, under its name or set aside for a disk that failed."""
    if act == "restore":
        return ""
    there = {kept.step: kept.path for kept in folder.kept()}
    there |= {int(path.name[5:11]): path for path in folder.path.glob("step-*.bad") if (path / "state.pt").exists()}
    lost = [before for before in ({step - 1, 2} if act == "save" else {1, 2}) if before not in there]
    if lost:
        return f"the checkpoints of steps {lost} are lost; {sorted(there)} are there"
    return "".join(f"step {number} is damaged" for number, path in there.items() if load(path) != number)


def _next(place: Path, folder: Folder, form: str, claim: Claim) -> str:
    save(folder, 9, form, claim)
    found = folder.newest()
    if found is None or load(found[0]) != 9:
        return "the save after the fault is not found"
    names = {path.name for path in folder.path.iterdir() if path.name.startswith(".")}
    return f"{sorted(names)} are left" if names else ""


def main(every: int, flips: int, seed: int, jobs: int, forms: Sequence[str] = FORMS) -> bool:
    """Plays the faults at every `every`-th call (0: none) in so many processes, and flips bits; prints what they came
    to. Whether all was right."""
    torch.set_num_threads(1)
    wrong: list[str] = []
    points = 0
    with pool_of(jobs, forks=True) as pool:
        kinds = list(product(forms if every else (), ACTS))
        played = [[pool.submit(play, form, act, fault, every) for fault in FAULTS] for form, act in kinds]
        for (form, act), futures in zip(kinds, played, strict=True):
            counts = {fault: future.result() for fault, future in zip(FAULTS, futures, strict=True)}
            found = [text for faults in counts.values() for text in faults.wrong]
            at = ", ".join(f"{fault} at {faults.points} calls" for fault, faults in counts.items())
            sys.stdout.write(f"{form}, {act}: {at}: {len(found)} wrong\n")
            sys.stdout.flush()
            wrong += found
            points += sum(faults.points for faults in counts.values())
    missed = flip(flips, seed)
    sys.stdout.write("".join(f"{text}\n" for text in (*wrong, *missed)))
    sys.stdout.write(f"{points} faults: {len(wrong)} wrong\n")
    sys.stdout.write(f"{flips} flipped bits: {len(missed)} not found\n")
    return not wrong and not missed


def flip(count: int, seed: int) -> list[str]:
    """Flips one random bit of a checkpoint, `count` times. What was not found."""
    rng, missed = random.Random(seed), []
    with tempfile.TemporaryDirectory(prefix="flips-") as place:
        folder, claim = _quiet(Path(place)), Claim("flips")
        paths = [save(Folder(Path(place) / form, lambda text: None), 1, form, claim) for form in FORMS]
        for _ in range(count):
            path = rng.choice(paths)
            target = rng.choice(sorted(path.iterdir()))
            place_in = rng.randrange(target.stat().st_size)
            bit = 1 << rng.randrange(8)
            _flip(target, place_in, bit)
            try:
                folder.verify(path)
                missed.append(f"{path.parent.name}: bit {bit} of byte {place_in} of {target.name}")
            except Exception as error:  # noqa: BLE001 - any other error than the one below is a miss
                if type(error).__name__ != "CheckpointDamaged":
                    missed.append(f"{target.name}: byte {place_in}, bit {bit}: {error!r}")
            _flip(target, place_in, bit)
    return missed


def _flip(path: Path, place: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ bit]))
