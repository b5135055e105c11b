"""Whether the training is complete: the mark that the worker library leaves beside the checkpoints."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ...proto.endings import MARK
from ...rendezvous.codec.digest import sha256


def digest_of(command: Sequence[str]) -> str:
    """What tells one command from another, and not what it holds."""
    return sha256("\0".join(command).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def why_complete(directory: str, command: Sequence[str]) -> str:
    """That this command has said that its training is complete, in one sentence; empty if it has not, or the mark
    cannot be read."""
    import json

    path = os.path.join(directory, MARK)
    try:
        with open(path, encoding="utf-8") as file:
            mark = json.load(file)
        known, step, at = str(mark["command"]), int(mark["step"]), str(mark["at"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    if known and known != digest_of(command):
        return ""
    return f"the training was complete at step {step}, {at}; to train on, remove {path} or change the arguments"
