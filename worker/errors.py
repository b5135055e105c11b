"""What the worker library raises."""

from __future__ import annotations


class WorkerLibraryError(Exception):
    """Base of all errors of the worker library."""


class NotResumable(WorkerLibraryError, ValueError):
    """A loader, a dataset or a state cannot be resumed exactly as it is; the text says what to add."""


class WrongState(WorkerLibraryError, ValueError):
    """A checkpoint belongs to another dataset, loader, model or level than the one it is loaded into."""


class CheckpointDamaged(WorkerLibraryError):
    """A file of a checkpoint is not what its manifest says."""


class CheckpointNotWritten(WorkerLibraryError):
    """A checkpoint could not be written; the one before it stays."""


def text_of(error: BaseException) -> str:
    """What an error says; its class where it says nothing, as MemoryError and NotImplementedError may."""
    return str(error) or type(error).__name__


class Misused(WorkerLibraryError, RuntimeError):
    """A call of the library at a place where it means nothing."""
