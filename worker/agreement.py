"""The checkpoint that all ranks of a start begin with: agreed upon, and brought to the nodes that lack it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .checkpoints.copies import Storage, fetch
from .checkpoints.fence import Claim
from .checkpoints.files import (
    CheckedWriter,
    Content,
    Reader,
    check_file,
    compare,
    load_tensors,
    read_file,
    sync_directory,
    write_file,
)
from .checkpoints.folder import Folder, Unread
from .checkpoints.layouts import wanted
from .checkpoints.lineage import Starts, begun, ends, starts_of, unrelated
from .checkpoints.manifest import NAME, Manifest
from .checkpoints.tensor_files import Index
from .checkpoints.transfer import CHUNK, Homes, Transfer, carry
from .checkpoints.writer import STATE
from .errors import CheckpointDamaged, NotResumable
from .world import World


@dataclass(frozen=True)
class Here:
    """What one file system has of a checkpoint."""

    name: str
    step: int
    identity: str
    parts: list[str]
    """Files with pieces of tensors that the checkpoint has, wherever they are."""
    held: list[str]
    """Those of them that are here, and verify."""


class CheckpointChoice:
    """Made by all ranks of a start. Where the ranks see several file systems, each of them has a home for checkpoints:
    a directory, and the first rank that sees it, which acts for it."""

    def __init__(self, world: World, folder: Folder, claim: Claim, homes: Homes, log: Callable[[str], None]) -> None:
        self._world, self._folder, self._claim, self._homes, self._log = world, folder, claim, homes, log
        self._first = homes.first_of[world.rank]
        self._acts = self._first == world.rank
        self._unread: Unread | None = None
        """That the disk of this home reads no checkpoint."""
        self.starts: Starts = []
        """Those that lead to this one's checkpoints, itself included."""

    def reach(self, storage: Storage | None, things: Mapping[str, Any]) -> tuple[Path, Manifest] | None:
        """Collective: the newest checkpoint whose files all verify, on one node or on several together. Nodes get from
        their peers what they lack of it, and all from slower storage where no node has one. None: there is none.

        storage: slower storage; on the rank that reads it. things: whose states are loaded; of their sharded tensors
        each node gets the parts that its ranks hold. Raises WrongState where a newer round writes to the directory,
        NotResumable where parts of each checkpoint are on no node, OSError.
        """
        claimed = self._world.together(lambda: self._claimed() if self._acts else [[], []])
        over = {token: None for tokens, _ in claimed for token in tokens}
        self._folder.ended = ends(history for _, histories in claimed for history in histories)
        found = self._find(storage, things)
        if found is not None:
            self._part_with_others(found[1], [history for _, histories in claimed for history in histories])
        self.starts = begun(self._claim.token, found[1] if found is not None else None, over)
        self._folder.ended = {**self._folder.ended, **ends([self.starts])}
        return found

    def _find(self, storage: Storage | None, things: Mapping[str, Any]) -> tuple[Path, Manifest] | None:
        skip: list[str] = []
        lacking = ""
        while found := self._everywhere(lambda: self._newest(skip)):
            source = max(found, key=lambda home: (found[home].step, -home))
            newest = found[source]
            having = {home: here for home, here in found.items() if here.identity == newest.identity}
            if not (lost := set(newest.parts).difference(*(here.held for here in having.values()))):
                return self._spread(source, having, things)
            lacking = f"that of step {newest.step} lacks {', '.join(sorted(lost))}"
            self._log(f"no checkpoint is whole on the nodes of this start: {lacking}; the one before it is used")
            skip.append(newest.identity)
        if any(self._world.gather(storage is not None)) and (found := self._everywhere(lambda: self._fetched(storage))):
            return self._spread(min(found), found, things)
        if lacking:
            raise NotResumable(
                f"no checkpoint in {self._folder.path} is whole on the nodes of this start: {lacking}; start with the "
                "nodes that wrote it, or give an empty directory to begin anew"
            )
        self._world.together(self._begin_anew)
        return None

    def _everywhere(self, look: Callable[[], Here | None]) -> dict[int, Here]:
        """Collective: what each home has, by its first rank; those that have something."""

        def told() -> dict[str, Any] | None:
            here = look() if self._acts else None
            return None if here is None else asdict(here)

        return {rank: Here(**here) for rank, here in enumerate(self._world.together(told)) if here is not None}

    def _claimed(self) -> list[Any]:
        """Tokens of the starts before this one, and the histories of the checkpoints that are here."""
        over = self._folder.claim(self._claim)
        self._folder.remove_leftovers(self._claim.token)
        return [over, self._folder.histories()]

    def _newest(self, skip: Collection[str]) -> Here | None:
        try:
            return _told(self._folder.newest(skip))
        except Unread as unread:  # another node may have a checkpoint, or slower storage
            self._unread = unread
            return None

    def _begin_anew(self) -> None:
        """There is no checkpoint on any node. Raises Unread where that is the disk's word only."""
        if self._unread is not None:
            raise self._unread
        if self._acts and self._folder.has_bad():
            self._log(
                f"no checkpoint in {self._folder.path} verifies, so the run begins anew, at step 0; WHY.txt in each "
                "folder step-....bad says what is wrong with it"
            )

    def _part_with_others(self, manifest: Manifest, histories: Iterable[Starts]) -> None:
        """A node may have come with checkpoints of another training, as of an earlier job in the same path. Retention
        would take them for older ones of this."""
        goes_on = starts_of(manifest)
        if not any(unrelated(history, goes_on) for history in histories):
            return
        self._folder.goes_on = goes_on
        if not self._world.rank:
            self._log(
                f"there are checkpoints of several trainings in {self._folder.path} on the nodes of this start: it "
                f"goes on with the one of step {manifest.step}, and sets the others aside at its first checkpoint; "
                "where another was meant, stop it before, and move this one away"
            )

    def _fetched(self, storage: Storage | None) -> Here | None:
        """The newest copy on slower storage, which is a checkpoint here now."""
        return _told(fetch(storage, self._folder, self._claim.token, self._log)) if storage is not None else None

    # -- what nodes lack -----------------------------------------------------------------------------------------------

    def _spread(self, source: int, having: Mapping[int, Here], things: Mapping[str, Any]) -> tuple[Path, Manifest]:
        """Collective: until each home has what its ranks load. Gives the checkpoint's place in this one.

        having: the homes that have at least a part of it.
        """
        whole = all(here.held == here.parts for here in having.values())
        lacks = [home for home in self._homes.firsts if home not in having]
        name = having[self._first].name if self._first in having else ""
        if lacks:
            placed = self._hand_over(source, having[source].name, lacks, whole)
            name = name or placed
        folder = self._folder.path / name
        if not whole:
            self._fetch_parts(folder, having, things)
        return folder, Manifest.read(folder)

    def _hand_over(self, source: int, name: str, lacks: list[int], whole: bool) -> str:
        """Collective: the checkpoint of `source` for homes that have nothing of it, without the pieces of tensors
        unless it is whole there. Gives its name in this home, where it was lacking."""
        folder = self._folder.path / name
        gets = self._acts and self._first in lacks
        aside = self._folder.path / f".{name}.{self._claim.token}"
        self._world.together(lambda: aside.mkdir() if gets else None)
        data = read_file(folder / NAME) if self._world.rank == source else b""
        manifest = Manifest.parse(self._world.broadcast_bytes(data, source), name)
        every, parts = {**manifest.files, **manifest.elsewhere}, {} if whole else manifest.parts()
        files = {file: content for file, content in every.items() if file not in parts}
        for file, content in files.items():
            self._hand_over_file(source, folder / file, aside / file if gets else None, content)

        def place() -> str:
            if not gets:
                return ""
            write_file(aside / NAME, replace(manifest, files=files, elsewhere=parts).to_bytes())
            sync_directory(aside)
            named = self._folder.place(aside, manifest)
            self._folder.sync()
            return named.name

        return str(self._world.together(place)[self._first])

    def _hand_over_file(self, source: int, path: Path, to: Path | None, content: Content) -> None:
        reader = Reader(path) if self._world.rank == source else None
        writer = CheckedWriter(to) if to is not None else None
        try:
            for first in range(0, content.length, CHUNK):
                data = reader.read(min(CHUNK, content.length - first)) if reader is not None else b""
                got = self._world.broadcast_bytes(data or b"", source)
                if writer is not None:
                    writer.write(got)
            if writer is not None:
                compare(path.name, writer.finish(), content)
        finally:
            for file in (reader, writer):
                if file is not None:
                    file.close()

    def _fetch_parts(self, folder: Path, having: Mapping[int, Here], things: Mapping[str, Any]) -> None:
        """Collective: the files that the ranks of this home read, from peers that have them, each into its place."""
        parts = Manifest.read(folder).parts()
        asked = self._world.together(lambda: sorted(self._wanted(folder, set(parts), things)))
        transfers: list[Transfer] = []
        for home in self._homes.firsts:
            held = having[home].held if home in having else []
            needed = {name for rank in self._homes.members(home) for name in asked[rank]}
            for name in sorted(needed.difference(held)):
                sources = [other for other, here in having.items() if name in here.held]
                transfers.append(Transfer(name, parts[name], sources[len(transfers) % len(sources)], home))

        def fetched() -> None:
            carry(self._world, transfers, folder.joinpath, lambda name: folder / f".{name}.part")
            got = [transfer.name for transfer in transfers if transfer.target == self._world.rank]
            for name in got:
                (folder / f".{name}.part").rename(folder / name)
            if got:
                sync_directory(folder)

        self._world.together(fetched)

    def _wanted(self, folder: Path, parts: set[str], things: Mapping[str, Any]) -> set[str]:
        skeleton = load_tensors(folder / STATE)
        index = Index.read(folder, Manifest.read(folder).files)
        return parts & wanted(skeleton, index, {name: thing for name, thing in things.items() if name in skeleton})


def _told(found: tuple[Path, Manifest] | None) -> Here | None:
    if found is None:
        return None
    path, manifest = found
    held = [
        name for name, content in manifest.parts().items() if name in manifest.files or _is_here(path, name, content)
    ]
    return Here(path.name, manifest.step, manifest.identity(), sorted(manifest.parts()), sorted(held))


def _is_here(path: Path, name: str, content: Content) -> bool:
    """Whether a file that was fetched from a peer is here; one that does not verify is fetched again."""
    try:
        check_file(path / name, content)
    except (CheckpointDamaged, OSError):
        return False
    return True
