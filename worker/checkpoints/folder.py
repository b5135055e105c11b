"""The directory of a run's checkpoints: which there are, which is the newest that verifies, which may go."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...proto.endings import MARK
from ..errors import CheckpointDamaged, Misused, WrongState
from .fence import NAME as FENCE
from .fence import Claim, check, claim
from .files import check_file, sync_directory, write_file
from .lineage import Starts, left_behind, starts_of, unrelated
from .manifest import Manifest

_STEP = re.compile(r"step-(\d{6,})(?:-(\d+))?")
_BAD = re.compile(rf"{_STEP.pattern}\.bad\d*")
_ASIDE = re.compile(rf"\.(step-\d+(-\d+)?\..+|trash-.+|round\.json\..+|{re.escape(MARK)}\..+|probe-.+)")


@dataclass(frozen=True)
class Kept:
    """A checkpoint in the directory."""

    path: Path
    step: int


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay: the `newest` that verify, every `every`-th step (0: none), and the labelled ones."""

    newest: int = 2
    every: int = 0

    def __post_init__(self) -> None:
        if self.newest < 1 or self.every < 0:
            raise Misused(
                f"Retention(newest={self.newest}, every={self.every}): the newest checkpoint always stays, so `newest` "
                "is 1 or more; sys.maxsize keeps all"
            )

    @classmethod
    def checked(cls, keep: Retention | None) -> Retention:
        """What was asked for, else the default. Raises Misused where it is something else."""
        if keep is not None and not isinstance(keep, cls):
            raise Misused(f"keep={keep!r} is no Retention; give keep=Retention(newest=3)")
        return keep or cls()


def name_of(step: int, again: int = 1) -> str:
    """The folder of a step's first checkpoint, or of a further one."""
    return f"step-{step:06d}" + (f"-{again}" if again > 1 else "")


def next_name(step: int, names: Iterable[str], fits: Callable[[str], bool]) -> str:
    """The name of another checkpoint of a step: one of `names` that fits, else one behind all of them that does. The
    first ones may be free again, as retention removes the oldest, and would pass for older."""
    there = [name for name, at in newest_first(names) if at == step]
    for name in there:
        if fits(name):
            return name
    again = int(_STEP.fullmatch(there[0])[2] or 1) + 1 if there else 1  # type: ignore[index]
    while not fits(name := name_of(step, again)):
        again += 1
    return name


def newest_first(names: Iterable[str]) -> list[tuple[str, int]]:
    """The names among them that checkpoints have, with their steps, the newest first. Of the same step there may be a
    second one, which holds more of an evaluation, say."""
    found = [(int(match[1]), int(match[2] or 1), name) for name in names if (match := _STEP.fullmatch(name))]
    return [(name, step) for step, _, name in sorted(found, reverse=True)]


class Folder:
    """One directory of checkpoints, made where there is none."""

    def __init__(self, path: Path, log: Callable[[str], None]) -> None:
        """Raises Misused where something else is in its place or this user may not write there, OSError where it cannot
        be made."""
        self.path, self._log = path, log
        self.ended: Mapping[str, int] = {}
        """Of starts that others went on from: the last step; see `lineage`."""
        self.goes_on: Starts = []
        """Where there are checkpoints of several trainings: the starts that led to the one that this start goes on
        from. The others are set aside once this start has committed one; until then somebody may choose another."""
        self._unread: list[tuple[Path, OSError]] = []
        """Checkpoints that the disk would not read, and what it said."""
        try:
            with may_write(path):
                path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise Misused(f"{path} cannot be the directory of checkpoints: {in_the_way(path)}") from None

    def kept(self) -> list[Kept]:
        """All that have a checkpoint's name, the newest first. Names count, never the times of files."""
        with os.scandir(self.path) as entries:
            names = [entry.name for entry in entries]
        return [Kept(self.path / name, step) for name, step in newest_first(names)]

    def has_bad(self) -> bool:
        """Whether one was set aside as damaged, by this start or an earlier one."""
        return any(_BAD.fullmatch(name) for name in os.listdir(self.path))

    def histories(self) -> list[Starts]:
        """Of each checkpoint that can be read: the starts that led to it."""
        found = []
        for kept in self.kept():
            with contextlib.suppress(CheckpointDamaged, OSError):  # said when it is looked at
                found.append(starts_of(Manifest.read(kept.path)))
        return found

    def newest(self, skip: Collection[str] = ()) -> tuple[Path, Manifest] | None:
        """The newest checkpoint whose every byte is as it was written. One that is not is set aside, with why, as is
        one that a later start has left behind.

        skip: identities of some that are passed over. Raises Unread where none verifies and the disk would not read
        one: a run does not begin anew because of that, nor does the start after this one.
        """
        self._unread = []
        for kept in self.kept():
            try:
                manifest = Manifest.read(kept.path)
                if manifest.identity() in skip:
                    continue
                if why := left_behind(manifest, self.ended):
                    self.set_aside(kept.path, why, "stale")
                    continue
                found = kept.path, self.verify(kept.path)
            except CheckpointDamaged as damage:
                self.set_aside(kept.path, str(damage))
            except OSError as error:
                self._unread.append((kept.path, error))
            else:
                self._give_up()
                return found
        if self._unread:
            raise Unread(self.path, *self._unread[0])
        return None

    def _give_up(self) -> None:
        """Sets aside what the disk would not read, once the run goes on from something else: the next start would go on
        from it, and drop what was trained meanwhile."""
        for path, error in self._unread:
            self.set_aside(path, f"it cannot be read: {error}")
        self._unread = []

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
        """Gives a whole checkpoint its name: the next one of its step.

        One with the same content may be there: another node that shares this directory was first.
        """
        self._give_up()
        names = [kept.path.name for kept in self.kept()]
        return self.path / next_name(manifest.step, names, lambda name: self._take(self.path / name, aside, manifest))

    def _take(self, named: Path, aside: Path, manifest: Manifest) -> bool:
        """Give it this name. Whether its content has the name now."""
        if named.exists():
            try:
                other = Manifest.read(named)
            except CheckpointDamaged:
                return False  # set aside at the next start
            if other.identity() != manifest.identity():
                return False
            shutil.rmtree(aside)
            return True
        try:
            aside.rename(named)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            return False
        return True

    def set_aside(self, path: Path, why: str, ending: str = "bad") -> None:
        """Renames a checkpoint that does not verify, or is stale, and leaves the reason inside. Nothing is deleted.

        ending: of its new name.
        """
        numbers = itertools.count(2)
        aside = path.with_name(f"{path.name}.{ending}")
        while aside.exists():
            aside = path.with_name(f"{path.name}.{ending}{next(numbers)}")
        fault, then = ("damaged", "; one before it is used, if there is any") if ending == "bad" else (ending, "")
        self._log(f"checkpoint {path.name} is {fault} and is set aside as {aside.name}: {why}{then}")
        try:
            path.rename(aside)
            write_file(aside / "WHY.txt", f"{why}\n".encode())
        except FileNotFoundError:
            return  # another rank was first
        except OSError as error:
            self._log(f"cannot set aside checkpoint {path.name}: {error}")

    def claim(self, mine: Claim) -> list[str]:
        """From now on only this start commits here. Gives the tokens of those that did before. Raises WrongState where
        a newer round of the same job has begun, and as `may_write`."""
        with may_write(self.path):
            return claim(self.path, mine)

    def check_claim(self, mine: Claim) -> None:
        """Raises WrongState where another start has claimed the directory since."""
        check(self.path, mine)

    def remove_leftovers(self, token: str) -> None:
        """Removes what earlier processes left half written. What cannot be removed is said, and stays."""
        for entry in list(os.scandir(self.path)):
            if _ASIDE.fullmatch(entry.name) and not entry.name.endswith(f".{token}"):
                try:
                    self._remove(Path(entry.path), token)
                except OSError as error:
                    self._log(f"cannot remove {entry.path}, which an earlier start left half written: {error}")

    def retain(self, retention: Retention, token: str, in_use: Collection[str] = ()) -> None:
        """Removes what retention does not keep. Called after a commit, whose checkpoint is the newest.

        in_use: names of folders that somebody reads just now.
        """
        newest = 0
        for kept in self.kept():
            try:
                manifest = Manifest.read(kept.path)
            except (CheckpointDamaged, WrongState, OSError):
                continue  # what cannot be read is set aside at the next start, not removed
            if unrelated(starts_of(manifest), self.goes_on):
                self.set_aside(kept.path, "it is of another training than the one that goes on here", "stale")
                continue
            if left_behind(manifest, self.ended):
                continue  # as is what an older start committed
            if manifest.label or (retention.every and kept.step % retention.every == 0):
                continue
            newest += 1
            if newest > retention.newest and kept.path.name not in in_use:
                self._remove(kept.path, token)

    def _remove(self, path: Path, token: str) -> None:
        """By another name first: a writer of an older round that still lives finds its folder gone, not half empty."""
        trash = self.path / f".trash-{path.name.removeprefix('.')}.{token}"
        with contextlib.suppress(FileNotFoundError):
            if path.is_symlink() or not path.is_dir():
                path.unlink()
                return
            if path.name.startswith(".trash-"):
                trash = path
            else:
                path.rename(trash)
            shutil.rmtree(trash, ignore_errors=True)

    def sync(self) -> None:
        sync_directory(self.path)


class Unread(OSError):
    """The disk reads none of the checkpoints that are there."""

    def __init__(self, path: Path, newest: Path, why: OSError) -> None:
        """path: of the directory. newest, why: the newest of them, and what the disk said."""
        super().__init__(
            f"no checkpoint in {path} can be read, and the run does not begin anew: {newest.name}: {why}; start it "
            "again when the disk reads them, or give an empty directory to begin anew"
        )


@contextlib.contextmanager
def may_write(path: Path) -> Iterator[None]:
    """Around the first writes to a directory of checkpoints. Raises Misused where they are refused to this user, and
    OSError that says what to do where there is no room for them."""
    try:
        yield
    except OSError as refused:
        if refused.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(
                refused.errno,
                f"{refused.strerror}: {path} has no room for {FENCE}, by which a start claims it; free a MiB there, "
                "and start again",
            ) from None
        if refused.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        raise Misused(
            f"{path} cannot be the directory of checkpoints: user {os.geteuid()} may not write there "
            f"({refused.strerror}); give a directory that the workers of every node may write to"
        ) from None


def in_the_way(path: Path) -> str:
    """What is no directory in this path, and what to do about it."""
    wrong = next(
        (part for part in (*reversed(path.parents), path) if os.path.lexists(part) and not part.is_dir()), path
    )
    if wrong.is_symlink() and not wrong.exists():
        return f"{wrong} is a link to {os.readlink(wrong)}, which is not there; make that directory, or remove the link"
    return f"{wrong} is a file; remove it, or give another directory"
