"""The directory of a run's checkpoints: which there are, which is the newest that verifies, which may go."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointDamaged, WrongState
from .files import check_file, sync_directory, write_file
from .manifest import Manifest

_STEP = re.compile(r"step-(\d{6,})(?:-(\d+))?")
_ASIDE = re.compile(r"\.(step-\d+\..+|trash-.+)")
_FENCE = "round.json"


@dataclass(frozen=True)
class Kept:
    """A checkpoint in the directory."""

    path: Path
    step: int
    again: int = 1
    """1 for the first checkpoint of its step, 2 for the next, which holds more of an evaluation, say."""


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay: the `newest` that verify, every `every`-th step (0: none), and the labelled ones."""

    newest: int = 2
    every: int = 0


def name_of(step: int, again: int = 1) -> str:
    """The folder of a step's first checkpoint, or of a further one."""
    return f"step-{step:06d}" + (f"-{again}" if again > 1 else "")


class Folder:
    """One directory of checkpoints, made where there is none."""

    def __init__(self, path: Path, log: Callable[[str], None]) -> None:
        self.path, self._log = path, log
        path.mkdir(parents=True, exist_ok=True)

    def kept(self) -> list[Kept]:
        """All that have a checkpoint's name, the newest first. Names count, never the times of files."""
        names = (entry.name for entry in os.scandir(self.path))
        found = [
            Kept(self.path / name, int(match[1]), int(match[2] or 1))
            for name in names
            if (match := _STEP.fullmatch(name))
        ]
        return sorted(found, key=lambda kept: (-kept.step, -kept.again))

    def newest(self) -> tuple[Path, Manifest] | None:
        """The newest checkpoint whose every byte is as it was written. One that is not is set aside, with why."""
        for kept in self.kept():
            try:
                return kept.path, self.verify(kept.path)
            except CheckpointDamaged as damage:
                self.set_aside(kept.path, str(damage))
        return None

    def verify(self, path: Path) -> Manifest:
        """Reads all of a checkpoint. Raises CheckpointDamaged with what is wrong, WrongState for a later format."""
        manifest = Manifest.read(path)
        match = _STEP.fullmatch(path.name)
        if match and manifest.step != int(match[1]):
            raise CheckpointDamaged(f"{path.name}: its manifest is of step {manifest.step}")
        for name, content in manifest.files.items():
            try:
                check_file(path / name, content)
            except FileNotFoundError:
                raise CheckpointDamaged(f"{path.name}: {name} is missing") from None
        return manifest

    def place(self, aside: Path, manifest: Manifest) -> Path:
        """Gives a whole checkpoint its name: the first free one of its step.

        One with the same content may be there: another node that shares this directory was first.
        """
        for again in itertools.count(1):
            named = self.path / name_of(manifest.step, again)
            if named.exists():
                try:
                    other = Manifest.read(named)
                except CheckpointDamaged:
                    continue  # set aside at the next start
                if other.identity() == manifest.identity():
                    shutil.rmtree(aside)
                    return named
                continue
            try:
                aside.rename(named)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                continue
            return named
        raise AssertionError("numbers do not end")

    def set_aside(self, path: Path, why: str) -> None:
        """Renames a checkpoint that does not verify, and leaves the reason inside. Nothing is deleted."""
        aside = path.with_name(f"{path.name}.bad")
        number = 1
        while aside.exists():
            number += 1
            aside = path.with_name(f"{path.name}.bad{number}")
        self._log(
            f"checkpoint {path.name} is damaged and is set aside as {aside.name}: {why}; the one before it is used"
        )
        try:
            path.rename(aside)
            (aside / "WHY.txt").write_text(why + "\n")
        except FileNotFoundError:
            return  # another rank was first

    def begin_round(self, number: int, token: str) -> None:
        """Says that round `number` writes here from now on: an older round commits nothing any more.

        Raises WrongState where a newer round has begun.
        """
        if (newest := self._newest_round()) > number:
            raise WrongState(f"round {newest} writes to {self.path}, and this is round {number}, an older one")
        aside = self.path / f".{_FENCE}.{token}"
        aside.unlink(missing_ok=True)
        write_file(aside, json.dumps({"round": number, "token": token}).encode())
        aside.rename(self.path / _FENCE)

    def check_round(self, number: int) -> None:
        """Raises WrongState where a newer round than `number` writes here."""
        if (newest := self._newest_round()) > number:
            raise WrongState(f"round {newest} writes to {self.path} now; this is round {number}, which is over")

    def _newest_round(self) -> int:
        try:
            return int(json.loads((self.path / _FENCE).read_bytes())["round"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return 0

    def sweep(self, token: str) -> None:
        """Removes what earlier processes left half written."""
        for entry in list(os.scandir(self.path)):
            if _ASIDE.fullmatch(entry.name) and not entry.name.endswith(f".{token}"):
                self._remove(Path(entry.path), token)

    def retain(self, retention: Retention, token: str) -> None:
        """Removes what retention does not keep. Called after a commit, whose checkpoint is the newest."""
        newest = 0
        for kept in self.kept():
            try:
                label = Manifest.read(kept.path).label
            except CheckpointDamaged:
                continue  # what cannot be read is set aside at the next start, not removed
            if label or (retention.every and kept.step % retention.every == 0):
                continue
            newest += 1
            if newest > retention.newest:
                self._remove(kept.path, token)

    def _remove(self, path: Path, token: str) -> None:
        """By another name first: a writer of an older round that still lives finds its folder gone, not half empty."""
        trash = self.path / f".trash-{path.name.removeprefix('.')}.{token}"
        with contextlib.suppress(FileNotFoundError):
            path.rename(trash)
            shutil.rmtree(trash, ignore_errors=True)

    def sync(self) -> None:
        sync_directory(self.path)
