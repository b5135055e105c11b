"""The one file of a saved trainer: what torch.save writes, brought to disk whole or not at all, verified when read."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path
from typing import Any, cast

FORMAT = "elastic_agent.trainer"
VERSION = 1


def save(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write a state to a file that plain torch.load reads too; what was there stays until the new one is on disk.
    Raises OSError, with what the disk said."""
    put_in_place(write_aside(path, state), path)


def write_aside(path: str | os.PathLike[str], state: dict[str, Any]) -> str:
    """Write a state to a file beside this one, whole or not at all, and name it. Raises OSError, as `save` does."""
    import torch

    from ..worker.checkpoints.files import CheckedWriter

    target = Path(path)
    if not target.name:
        raise _not_written(target, IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)))
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        writer = CheckedWriter(aside)
        try:
            torch.save({"format": FORMAT, "version": VERSION, **state}, cast("Any", writer))
            writer.finish()
        except RuntimeError as error:
            raise writer.failed or error from None
        finally:
            writer.close()
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise _not_written(target, error) from error
    return str(aside)


def put_in_place(aside: str, path: str | os.PathLike[str]) -> None:
    """What `write_aside` wrote becomes the file. Raises OSError, as `save` does."""
    from ..worker.checkpoints.files import sync_directory

    target = Path(path)
    try:
        os.replace(aside, target)
        sync_directory(target.absolute().parent)
    except OSError as error:
        Path(aside).unlink(missing_ok=True)
        raise _not_written(target, error) from error


def _not_written(target: Path, error: OSError) -> OSError:
    text = f"cannot write the trainer's state to {target}: {error.strerror}; what was there stays"
    return OSError(error.errno, text)


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The state in a file, after every checksum was found right. Raises OSError, CheckpointDamaged, and WrongState
    where the file is another's."""
    from ..worker.checkpoints.foreign import read_foreign
    from ..worker.errors import CheckpointDamaged, WrongState

    try:
        kept = read_foreign(path)
    except CheckpointDamaged:
        raise
    except OSError as error:
        raise OSError(error.errno, f"cannot read the trainer's state from {path}: {error.strerror}") from error
    except Exception as error:  # of torch.load: it is an archive, of something else
        raise WrongState(f"{path} is no file of TorchTrainer.save: {type(error).__name__}: {error}") from error
    if not isinstance(kept, dict) or kept.get("format") != FORMAT:
        raise WrongState(f"{path} is no file of TorchTrainer.save; give one that save() wrote")
    if kept["version"] != VERSION:
        raise WrongState(f"{path} has version {kept['version']}, and this elastic-agent reads {VERSION}: update it")
    return {name: value for name, value in kept.items() if name not in ("format", "version")}
