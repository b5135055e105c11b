"""Reads a directory of checkpoints and says what can be proved from it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .checkpoints.files import read_file
from .checkpoints.folder import Folder, Kept
from .checkpoints.foreign import check_foreign
from .checkpoints.lineage import ends, left_behind
from .checkpoints.manifest import NAME, Manifest
from .errors import CheckpointDamaged, WrongState
from .frameworks.hugging_face import MANIFEST as TRAINERS
from .frameworks.hugging_face import check_whole
from .ledger import FILE as LEDGER
from .ledger import Ledger

UNREAD = 74
"""The status where nothing was verified, or nobody could be told; EX_IOERR of sysexits.h."""
_CALL = re.compile(r"(fit|train)-\d+")
"""The folder of a further call of Lightning's `fit`, or of `train` of Hugging Face's Trainer, in that of the first."""


@dataclass(frozen=True)
class Report:
    """What was found: lines for people, and whether all is well."""

    lines: tuple[str, ...]
    proved: bool


def verify(directory: Path) -> Report:
    """Every byte of every checkpoint against its manifest, and the newest one's ledger against exactly-once. Of a
    checkpoint's own folder, those of this one; else also those of further calls of a framework's training.

    Changes nothing in the directory. Raises FileNotFoundError where there is none.
    """
    if not directory.is_dir():
        raise FileNotFoundError(f"{directory} is no directory")
    reports = [_verify(directory)]
    for path in sorted(each for each in directory.iterdir() if _CALL.fullmatch(each.name)):
        if not (any(path.glob("step-*")) or any(path.glob("checkpoint-*"))):
            continue  # it has just begun
        report = _verify(path)
        reports.append(Report(tuple(f"{path.name}/{line}" for line in report.lines), report.proved))
    return Report(tuple(line for each in reports for line in each.lines), all(each.proved for each in reports))


def _verify(directory: Path) -> Report:
    """Without what is in folders below."""
    if theirs := _of_a_trainer(directory):
        return _verify_theirs(directory, theirs)
    alone = (directory / NAME).is_file()
    folder = Folder(directory.absolute().parent if alone else directory, lambda text: None)
    lines, newest = [], None
    damaged, gone, ended = False, False, _ended(folder)
    for kept in [Kept(directory.absolute(), 0)] if alone else folder.kept():
        try:
            manifest, ledger = folder.verify(kept.path), read_file(kept.path / LEDGER)
        except (CheckpointDamaged, WrongState, OSError) as damage:
            if not kept.path.exists():
                gone = True  # a training that goes on has removed it meanwhile, and has a newer one
                continue
            found = "of a later version, not looked at" if isinstance(damage, WrongState) else "DAMAGED"
            lines.append(f"{kept.path.name}: {found}: {damage}")
            damaged = True
            continue
        if why := left_behind(manifest, ended):
            lines.append(f"{kept.path.name}: left behind, and set aside at the next start: {why}")
            continue
        lines.append(
            f"{kept.path.name}: whole, {sum(c.length for c in manifest.files.values())} bytes, {_label(manifest)}"
        )
        newest = newest or (kept.path, manifest, ledger)
    if newest is None and gone:
        return _verify(directory)
    if newest is None:
        return Report((*lines, f"{directory}: no checkpoint that verifies"), False)
    ledger_lines, exact = _ledger(*newest)
    return Report((*lines, *ledger_lines), exact and not damaged)


def _of_a_trainer(directory: Path) -> list[Path]:
    """Checkpoints of Hugging Face's Trainer, the newest first: they have another manifest, and no ledger."""
    if (directory / TRAINERS).is_file():
        return [directory.absolute()]
    if any(directory.glob("step-*")):
        return []
    found = [(path.name.partition("-")[2], path) for path in directory.glob("checkpoint-*") if path.is_dir()]
    numbered = [(int(number), path) for number, path in found if number.isdigit()]
    return [path for _, path in sorted(numbered, reverse=True)]


def _verify_theirs(directory: Path, checkpoints: list[Path]) -> Report:
    lines, whole, damaged = [], False, False
    for path in checkpoints:
        try:
            if not (path / TRAINERS).exists():
                lines.append(f"{path.name}: not finished, or not written by this library, and not used")
                continue
            check_whole(path)
            size = sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
        except (CheckpointDamaged, OSError) as damage:
            if path.exists():  # else a training that goes on has removed it meanwhile
                lines.append(f"{path.name}: DAMAGED: {damage}")
                damaged = True
            continue
        lines.append(f"{path.name}: whole, {size} bytes, of Hugging Face's Trainer")
        whole = True
    if not whole:
        lines.append(f"{directory}: no checkpoint that verifies")
    return Report(tuple(lines), whole and not damaged)


def _ended(folder: Folder) -> dict[str, int]:
    with contextlib.suppress(WrongState):  # said of the checkpoint that it is of
        return ends(folder.histories())
    return {}


def verify_file(path: Path) -> Report:
    """A file that torch.save wrote, against the checksums of its own archive. Raises OSError."""
    try:
        return Report((f"{path}: whole, {check_foreign(path)} records, by the checksums of its archive",), True)
    except CheckpointDamaged as damage:
        return Report((f"{path}: DAMAGED: {damage}",), False)


def _label(manifest: Manifest) -> str:
    where = f"round {manifest.round}" if manifest.round else "no agent"
    return f"{where}, {manifest.run['world_size']} ranks" + (f", label {manifest.label!r}" if manifest.label else "")


def _ledger(path: Path, manifest: Manifest, kept: bytes) -> tuple[list[str], bool]:
    ledger = Ledger.from_bytes(kept)
    if ledger.head() != manifest.ledger:
        return [
            f"{path.name}: the ledger's chain ends in {ledger.head()} and the manifest says {manifest.ledger}"
        ], False
    faults = ledger.faults()
    lines = list(faults)
    for name in sorted(ledger.chains):
        finished = ledger.finished(name)
        if not faults:
            count = f"{len(finished)} finished epochs, {sum(finished.values())} samples, each trained on exactly once"
            lines.append(f"{path.name}: loader {name!r}: {count}")
    lines += [f"{path.name}: not finished: {sentence}" for sentence in ledger.left()]
    return lines, not faults


def main(arguments: list[str]) -> int:
    """`python -m elastic_agent.worker verify [--json] DIR`, or a FILE.pt from elsewhere: 0 where all is proved, 1 where
    it is not, 2 for a wrong command, 74 where that cannot be read or the report not be printed."""
    in_json = "--json" in arguments
    words = [word for word in arguments if word != "--json"]
    if len(words) != 2 or words[0] != "verify":
        _say("usage: python -m elastic_agent.worker verify [--json] DIR|FILE.pt")
        return 2
    path = Path(words[1])
    try:
        report = verify_file(path) if path.is_file() else verify(path)
    except FileNotFoundError as error:
        _say(f"{error}; give the directory that Run(...) was given")
        return 2
    except OSError as error:
        _say(f"{path} cannot be read: {error.strerror}; nothing was verified")
        return UNREAD
    lines = [json.dumps({"proved": report.proved, "lines": report.lines})] if in_json else report.lines
    return (0 if report.proved else 1) if _printed(lines) else UNREAD


def _printed(lines: Iterable[str]) -> bool:
    """Whether stdout took them; where it was closed from the beginning (`>&-`), nobody wants them."""
    if sys.stdout is None:
        return True
    try:
        sys.stdout.writelines(f"{line}\n" for line in lines)
        sys.stdout.flush()
    except OSError as error:
        # What is left would be tried again at the end of the process, which then ends with 120.
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
        if not isinstance(error, BrokenPipeError):  # else whoever reads has read enough
            _say(f"the report cannot be printed: {error.strerror}; make room, and verify again")
        return False
    return True


def _say(text: str) -> None:
    with contextlib.suppress(OSError, AttributeError):  # stderr may be closed, or be a file on the same disk
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
