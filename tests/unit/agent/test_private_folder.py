"""Directories of this user only."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from elastic_agent.agent.private_folder import NotPrivate, make_private, open_private


def test_a_directory_is_made_for_this_user_only_and_taken_again(tmp_path: Path) -> None:
    path = str(tmp_path / "own")
    for _ in range(2):
        make_private(path)
        fd = open_private(path)
        assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o700
        os.close(fd)


@pytest.mark.parametrize("kind", ["open", "linked", "file"])
def test_what_others_could_look_into_or_have_put_there_is_refused(kind: str, tmp_path: Path) -> None:
    """/tmp is everybody's: who is first could have put anything there."""
    path, target = tmp_path / kind, tmp_path / "target"
    target.mkdir(mode=0o700)
    if kind == "open":
        path.mkdir()
        path.chmod(0o710)
    elif kind == "linked":
        path.symlink_to(target)
    else:
        path.touch(mode=0o600)
    for make in (make_private, open_private):
        with pytest.raises(NotPrivate, match="is no directory of this user with mode 0700"):
            make(str(path))
