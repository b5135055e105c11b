"""Copies of checkpoints on slower storage: a directory, or whatever fsspec has a URL for.

A copy is a folder of the same name. Its manifest is written last, so one without a manifest is no copy. Copying never
delays training: it has a thread of its own, and what it could not do is said.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..errors import CheckpointDamaged, Misused, WorkerLibraryError, WrongState, text_of
from ..world import PATIENCE_S
from .files import CheckedWriter, Content, Reader, compare, read_file, sums_of, sync_directory
from .folder import Folder, Retention, in_the_way, newest_first, next_name
from .lineage import Starts, ends, left_behind, starts_of, unrelated
from .manifest import NAME, Manifest

_CHUNK = 16 << 20


class Storage(Protocol):
    """Folders of files. All methods raise OSError, or what fsspec's file system raises."""

    def folders(self) -> list[str]: ...

    def send(self, path: Path, folder: str) -> None:
        """Copies a file there; what a reader finds under its name is whole."""

    def fetch(self, folder: str, name: str, to: Path) -> Content:
        """Copies a file from there and brings it to disk."""

    def read(self, folder: str, name: str) -> bytes:
        """All of a small file."""

    def remove(self, folder: str) -> None: ...


class Directory:
    """A directory, on a network file system, say."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def folders(self) -> list[str]:
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise Misused(f"Run(copy_to={str(self._path)!r}) names no directory: {in_the_way(self._path)}") from None
        return [entry.name for entry in os.scandir(self._path)]

    def send(self, path: Path, folder: str) -> None:
        there = self._path / folder
        there.mkdir(parents=True, exist_ok=True)
        aside = there / f".{path.name}.part"
        aside.unlink(missing_ok=True)
        try:
            _copy(path, aside)
            os.rename(aside, there / path.name)
        finally:
            aside.unlink(missing_ok=True)
        sync_directory(there)
        sync_directory(self._path)

    def fetch(self, folder: str, name: str, to: Path) -> Content:
        return _copy(self._path / folder / name, to)

    def read(self, folder: str, name: str) -> bytes:
        return read_file(self._path / folder / name)

    def remove(self, folder: str) -> None:
        # The manifest first: what is half removed is no copy.
        (self._path / folder / NAME).unlink(missing_ok=True)
        shutil.rmtree(self._path / folder)


class Remote:
    """A URL of fsspec's. Objects there appear whole or not at all."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError:
            raise Misused(f"Run(copy_to={url!r}) needs fsspec: pip install fsspec, or give a directory") from None
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            raise Misused(f"Run(copy_to={url!r}): {error}; do so, or give a directory or another URL") from None
        except ValueError as error:
            raise Misused(f"Run(copy_to={url!r}): {error}; give a directory or another URL") from None

    def folders(self) -> list[str]:
        if not self._files.exists(self._root):
            return []
        self._files.invalidate_cache()
        return [entry.rstrip("/").rpartition("/")[2] for entry in self._files.ls(self._root, detail=False)]

    def send(self, path: Path, folder: str) -> None:
        self._files.makedirs(f"{self._root}/{folder}", exist_ok=True)
        target = f"{self._root}/{folder}/{path.name}"
        self._files.put_file(str(path), target)
        if (size := self._files.info(target)["size"]) != os.stat(path).st_size:
            raise OSError(f"{target} has {size} bytes after the copy of {path}")

    def fetch(self, folder: str, name: str, to: Path) -> Content:
        writer = CheckedWriter(to)
        try:
            with self._files.open(f"{self._root}/{folder}/{name}", "rb") as file:
                while data := file.read(_CHUNK):
                    writer.write(data)
            return writer.finish()
        finally:
            writer.close()

    def read(self, folder: str, name: str) -> bytes:
        return bytes(self._files.cat_file(f"{self._root}/{folder}/{name}"))

    def remove(self, folder: str) -> None:
        with suppress(FileNotFoundError):
            self._files.rm_file(f"{self._root}/{folder}/{NAME}")
        self._files.rm(f"{self._root}/{folder}", recursive=True)


def storage_at(where: str | os.PathLike[str]) -> Storage:
    """A directory, or a URL such as s3://bucket/run. Raises Misused where there can be none, or fsspec is missing."""
    place = os.fspath(where)
    if not place:
        raise Misused("Run(copy_to='') names no directory: give one, or a URL, or leave copy_to out")
    return Remote(place) if "://" in place else Directory(Path(place).absolute())


def send(storage: Storage, path: Path) -> Manifest:
    """Copies one checkpoint, its manifest last. Of one that cannot be copied nothing stays: the storage may be full.
    One that is there already is left as it is. Raises CheckpointDamaged where it is not as it was written."""
    manifest = Manifest.read(path)
    folder = _free(storage, manifest)
    if _manifest_of(storage, folder) is not None:
        return manifest
    try:
        for name, content in manifest.files.items():
            compare(name, sums_of(path / name), content)
            storage.send(path / name, folder)
        storage.send(path / NAME, folder)
        return manifest
    except Exception:
        with suppress(Exception):  # what is raised says what is wrong with the storage
            if _manifest_of(storage, folder) is None:
                storage.remove(folder)
        raise


def _free(storage: Storage, manifest: Manifest) -> str:
    """The name of a copy: that of the checkpoint, unless a copy of another one of this step has it. So a worker of an
    older round that still lives, on a node whose files nobody else sees, changes no copy of a newer one's."""

    def fits(name: str) -> bool:
        there = _manifest_of(storage, name)
        return there is None or there.identity() == manifest.identity()

    return next_name(manifest.step, storage.folders(), fits)


def _manifest_of(storage: Storage, folder: str) -> Manifest | None:
    """None where the folder is not there, or is no whole copy."""
    try:
        return Manifest.parse(storage.read(folder, NAME), folder)
    except (FileNotFoundError, CheckpointDamaged):
        return None


def fetch(storage: Storage, folder: Folder, token: str, log: Callable[[str], None]) -> tuple[Path, Manifest] | None:
    """The newest copy that verifies, as a checkpoint of the folder; None where there is none. Raises OSError."""
    for copy in _survey(storage):
        name = copy.name
        if copy.left_behind:
            log(f"the copy of {name} is not used: {copy.left_behind}")
            continue
        aside = folder.path / f".{name}.{token}"
        try:
            aside.mkdir()
            try:
                storage.fetch(name, NAME, aside / NAME)
            except FileNotFoundError:
                continue  # its writer died before the end
            manifest = Manifest.read(aside)
            for file, content in manifest.files.items():
                compare(file, storage.fetch(name, file, aside / file), content)
            sync_directory(aside)
            named = folder.place(aside, manifest)
            folder.sync()
            return named, manifest
        except (CheckpointDamaged, FileNotFoundError) as damage:
            log(f"the copy of {name} does not verify: {damage}; the one before it is used")
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return None


@dataclass(frozen=True)
class _Copy:
    name: str
    step: int
    label: str
    left_behind: str
    """Why it is in no history (`lineage`); empty for one that is."""
    starts: Starts
    """That led to it."""
    whole: bool
    """It has a manifest, which is written last."""


def _survey(storage: Storage) -> list[_Copy]:
    """The copies that are there, the newest first; half ones, too."""
    names, manifests = [], {}
    for name, step in newest_first(storage.folders()):
        try:
            there = _manifest_of(storage, name)
        except (NotADirectoryError, WrongState):
            continue  # no copy of ours, or of a later version of this library: it is left as it is
        names.append((name, step))
        if there is not None:
            manifests[name] = there
    ended = ends(starts_of(there) for there in manifests.values())
    return [
        _Copy(name, step, there.label, left_behind(there, ended), starts_of(there), whole=True)
        if (there := manifests.get(name)) is not None
        else _Copy(name, step, "", "", [], whole=False)
        for name, step in names
    ]


class Copier:
    """Copies the newest checkpoint while training goes on. One that is older than what waits is not copied, unless it
    has a label."""

    def __init__(self, storage: Storage, retention: Retention, log: Callable[[str], None]) -> None:
        self._storage, self._retention, self._log = storage, retention, log
        self._changed = threading.Condition()
        self._waiting: list[Path] = []
        self._now: Path | None = None
        self._thread: threading.Thread | None = None
        self._begins = True
        """Whether nothing was copied yet."""

    def offer(self, path: Path) -> None:
        """A checkpoint to copy."""
        with self._changed:
            self._waiting = [kept for kept in self._waiting if _label(kept)] + [path]
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="checkpoint-copier", daemon=True)
                self._thread.start()

    def in_use(self) -> list[str]:
        """Names of checkpoints that must not be removed: they are being copied, or wait."""
        with self._changed:
            return [path.name for path in [self._now, *self._waiting] if path is not None]

    def wait(self) -> None:
        """Until all that was offered is copied, or was given up."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._thread is None, PATIENCE_S):
                left = ", ".join(path.name for path in [self._now, *self._waiting] if path is not None)
                self._log(
                    f"{left} cannot be copied to slower storage within {PATIENCE_S:g} s, and the end of the run waits "
                    "for it; all of it is on the disk, so that the run may be ended"
                )
                self._changed.wait_for(lambda: self._thread is None)

    def _run(self) -> None:
        while (path := self._next()) is not None:
            doing = f"copy {path.name} to"
            try:
                sent = send(self._storage, path)
                doing = "remove an old copy from"
                self._retain(sent)
            except Exception as error:  # noqa: BLE001 - each storage has errors of its own
                self._log(f"cannot {doing} slower storage: {text_of(error)}; training goes on")

    def _next(self) -> Path | None:
        with self._changed:
            self._now = self._waiting.pop(0) if self._waiting else None
            if self._now is None:
                self._thread = None
                self._changed.notify_all()
            return self._now

    def _retain(self, sent: Manifest) -> None:
        """sent: what was copied last. What another training has copied there is not ours to remove."""
        newest = 0
        ours = [each for each in _survey(self._storage) if not unrelated(each.starts, starts_of(sent))]
        self._compare(sent.step, [each.step for each in ours if each.whole and not each.left_behind])
        for copy in ours:
            kept = copy.label or (self._retention.every and copy.step % self._retention.every == 0)
            if kept or copy.left_behind:
                continue
            # A half one is not counted: its writer died, and what is older may be all that there is.
            newest += copy.whole
            if newest > self._retention.newest - (not copy.whole):
                self._storage.remove(copy.name)

    def _compare(self, step: int, copied: list[int]) -> None:
        """Says at a start whose own checkpoint is an old one, as on a disk that was put back, that there is a newer."""
        begins, self._begins = self._begins, False
        if begins and max(copied, default=0) > step:
            self._log(
                f"slower storage has a copy of step {max(copied)}, and this start goes on from step {step}, which it "
                "found on its own disk: where that one was meant, stop it, and move away what is on the disk"
            )


def _label(path: Path) -> str:
    try:
        return Manifest.read(path).label
    except (WorkerLibraryError, OSError):
        return ""  # it will be said when it is copied


def _copy(path: Path, to: Path) -> Content:
    buffer = memoryview(bytearray(_CHUNK))
    writer = CheckedWriter(to)
    try:
        with Reader(path) as file:
            while count := file.readinto(buffer):
                writer.write(buffer[:count])
        return writer.finish()
    finally:
        writer.close()
