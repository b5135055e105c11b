"""Files that torch.save wrote elsewhere: without a manifest, with the checksums of their own archive."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import IO, Any, cast

import torch

from ..errors import CheckpointDamaged
from .files import Reader, load_tensors


def check_foreign(path: str | os.PathLike[str]) -> int:
    """Reads all of a file that torch.save wrote, and gives the number of records whose CRC-32 is as it was written.

    torch writes these checksums and does not look at them when it loads. Raises CheckpointDamaged, OSError.
    """
    with Reader(Path(path)) as file:
        if file.read(4) != b"PK\x03\x04":
            raise CheckpointDamaged(
                f"{path} is no archive of torch.save: damaged at its beginning, or of a form without checksums "
                "(torch before 1.6, or _use_new_zipfile_serialization=False)"
            )
        file.seek(0)
        try:
            with zipfile.ZipFile(cast("IO[bytes]", file)) as archive:
                bad = archive.testzip()
                count = len(archive.infolist())
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
            raise CheckpointDamaged(f"{path}: {error}") from error
        try:
            # What torch reads of the archive besides the records: it must find them.
            torch._C.PyTorchFileReader(os.fspath(path))
        except RuntimeError as error:
            raise CheckpointDamaged(f"{path}: torch cannot open it: {str(error).partition(chr(10))[0]}") from error
    if bad is not None:
        raise CheckpointDamaged(f"{path}: record {bad} is damaged: its CRC-32 differs from the one that was written")
    return count


def read_foreign(path: str | os.PathLike[str]) -> Any:
    """What torch.save wrote to a file, on the CPU, after its checksums were found right. Runs no code from it.

    Raises CheckpointDamaged, OSError, and what torch.load(weights_only=True) raises.
    """
    check_foreign(path)
    return load_tensors(Path(path))
