"""What calls hand to workers: which files stay, as calls are answered."""

from __future__ import annotations

import os
from pathlib import Path

from elastic_agent.trainer.program.parcels import Parcels


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_parcels_of_the_two_last_calls_stay(tmp_path: Path) -> None:
    """Others are removed when a later call is answered, which an interrupted program may not have waited for."""
    parcels = Parcels(str(tmp_path))
    made = [parcels.keep(b"state"), parcels.of(os.getpid), parcels.keep(b"state")]
    assert left(tmp_path) == sorted(made)
    parcels.answered("train", "")
    assert left(tmp_path) == made[1:]
    parcels.answered("apply_all_workers", made[2])
    assert left(tmp_path) == made[1:]


def test_what_save_hands_over_is_removed_at_once_and_pushes_nothing_out(tmp_path: Path) -> None:
    parcels = Parcels(str(tmp_path))
    state = parcels.keep(b"state")
    for _ in range(3):
        parcels.answered("save", parcels.keep(b"names"))
    parcels.answered("save", "")
    assert left(tmp_path) == [state]
