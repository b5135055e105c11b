"""Hugging Face's Trainer, in one line: `class MyTrainer(Exact, Trainer): pass`, and nothing else changed.

Its own checkpoints are kept, each with a manifest that is written last. Order and random numbers are this library's, so
that nothing of generators need be restored. `train()` goes on with the newest checkpoint that verifies.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..checkpoints.files import Content, Sums, check_file, sync_directory, write_file
from ..errors import CheckpointDamaged, NotResumable, WrongState
from .stateful import NoRun, StatefulLoader

MANIFEST = "elastic-agent.json"
BATCHES = "elastic-agent-batches.json"
"""What the Trainer's count of steps means in samples; it would be another place with batches of another size."""
_log = logging.getLogger(__name__)


class Exact:
    """Stands before `Trainer` in the list of bases."""

    args: Any
    accelerator: Any
    state: Any

    def get_train_dataloader(self) -> Any:
        """The Trainer's own loader, not yet prepared, in a loader of this library's."""
        theirs = self.accelerator.prepare
        self.accelerator.prepare = lambda loader, *_, **__: loader
        try:
            loader = super().get_train_dataloader()  # type: ignore[misc]
        finally:
            self.accelerator.prepare = theirs
        if self.args.gradient_accumulation_steps > 1 and self.args.world_size > 1:
            raise NotResumable("gradient_accumulation_steps with several ranks is not exact over resizes: use 1")
        _skip_by_place()
        return _Epochs(loader, self.args)

    def train(self, resume_from_checkpoint: Any = None, **options: Any) -> Any:
        """As the Trainer's; without a checkpoint the newest one in `output_dir` that verifies is used."""
        if resume_from_checkpoint in (None, True):
            newest = newest_checkpoint(Path(self.args.output_dir))
            resume_from_checkpoint = str(newest) if newest is not None else None
        if resume_from_checkpoint:
            check_batches(Path(resume_from_checkpoint), self._batches(), self.args.world_size)
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **options)  # type: ignore[misc]

    def _load_rng_state(self, checkpoint: Any) -> None:
        """Nothing: every batch keys the generators."""

    def _save_checkpoint(self, *args: Any, **options: Any) -> None:
        super()._save_checkpoint(*args, **options)  # type: ignore[misc]
        if self.args.should_save:
            folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            (folder / BATCHES).write_text(json.dumps(self._batches()))
            write_manifest(folder)

    def _batches(self) -> dict[str, int]:
        """Samples of a batch over all ranks, and batches of a step."""
        whole = self.args.train_batch_size * self.args.world_size
        return {"global_batch": whole, "accumulated": self.args.gradient_accumulation_steps}


class _Epochs:
    """The Trainer's training loader: it says `set_epoch`, and by how many batches it begins later."""

    def __init__(self, loader: Any, args: Any) -> None:
        self._args, self._skipped = args, 0
        seed = args.data_seed if args.data_seed is not None else args.seed
        self._loader = StatefulLoader(loader, NoRun(seed), "train")
        self.dataset, self.batch_sampler = loader.dataset, None

    def __len__(self) -> int:
        return len(self._loader)

    def skip(self, batches: int) -> None:
        self._skipped = batches

    def set_epoch(self, epoch: int) -> None:
        self._loader.go_to(epoch, self._skipped * self._loader.global_batch)
        self._skipped = 0

    def __iter__(self) -> Iterator[Any]:
        from accelerate.utils import send_to_device  # type: ignore[import-not-found, unused-ignore]

        for batch in self._loader:
            yield send_to_device(batch, self._args.device)


def _skip_by_place() -> None:
    """The Trainer skips batches by making another DataLoader; ours is put at the place instead."""
    module: Any = sys.modules["transformers.trainer"]
    theirs = module.skip_first_batches
    if getattr(theirs, "by_place", False):
        return

    def skip_first_batches(loader: Any, count: int = 0) -> Any:
        if not isinstance(loader, _Epochs):
            return theirs(loader, count)
        loader.skip(count)
        return loader

    skip_first_batches.by_place = True  # type: ignore[attr-defined]
    module.skip_first_batches = skip_first_batches


def check_batches(folder: Path, now: dict[str, int], ranks: int) -> None:
    """Raises WrongState where the batches of a checkpoint were of another size: samples would be missed or repeated."""
    try:
        kept = json.loads((folder / BATCHES).read_bytes())
    except FileNotFoundError:
        return  # of a version before, or of another tool
    if kept != now:
        whole, rest = divmod(kept["global_batch"], ranks)
        how = "another number of ranks, which divides it," if rest else f"per_device_train_batch_size={whole}"
        raise WrongState(
            f"{folder} was written with {kept['global_batch']} samples in a batch over all ranks and "
            f"gradient_accumulation_steps={kept['accumulated']}, and this start has {now['global_batch']} over {ranks} "
            f"ranks and {now['accumulated']}: give {how} and gradient_accumulation_steps={kept['accumulated']}, or "
            "another output_dir to begin anew"
        )


def write_manifest(folder: Path) -> None:
    """Length and checksums of every file of a checkpoint that is whole, brought to disk last."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST):
        files[str(path.relative_to(folder))] = _read(path).to_json()
    (folder / MANIFEST).unlink(missing_ok=True)
    write_file(folder / MANIFEST, json.dumps(files, indent=1).encode())
    sync_directory(folder)


def newest_checkpoint(output: Path) -> Path | None:
    """The newest checkpoint whose every byte is as it was written; what is not is passed over, with a warning."""
    found = [path for path in output.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    for path in sorted(found, key=lambda path: -int(path.name.removeprefix("checkpoint-"))):
        try:
            for name, kept in json.loads((path / MANIFEST).read_bytes()).items():
                check_file(path / name, Content.from_json(kept))
        except (OSError, ValueError, KeyError, CheckpointDamaged) as damage:
            _log.warning("checkpoint %s is not whole and is not used: %s; the one before it is tried", path, damage)
            continue
        return path
    return None


def _read(path: Path) -> Content:
    import os

    sums = Sums()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(1 << 20):
            sums.add(memoryview(piece))
        os.fsync(file.fileno())
    return sums.content()
