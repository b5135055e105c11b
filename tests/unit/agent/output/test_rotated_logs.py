"""Log files that are full: renamed, cut at lines, and complete."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_agent.agent.output.rotation import RotatingFile
from elastic_agent.agent.spec import Rotation
from support.rigs.round_logs import Begin, open_round, run


def contents(path: str) -> list[bytes]:
    """Of the renamed files, oldest first, and of the one that is written to."""
    folder, name = Path(path).parent, Path(path).name
    renamed = sorted((int(file.suffix[1:]), file) for file in folder.glob(f"{name}.*"))
    return [file.read_bytes() for _, file in renamed] + [Path(path).read_bytes()]


@pytest.mark.parametrize("keep", [None, 0, 2])
def test_full_files_are_renamed(begin: Begin, keep: int | None) -> None:
    """No file is larger than the limit, no line is in two; all files are kept unless the user gives a number."""
    attempt = open_round(begin(redirects={0: 1}, rotation=Rotation(2000, keep)))
    assert run(attempt, "for i in range(1000): print(f'{i:020}')")
    files = contents(attempt.stdout_files[0])
    lines = b"".join(files).splitlines()
    assert lines == [b"%020d" % number for number in range(1000)][-len(lines) :]
    assert all(len(file) <= 2000 and file.endswith(b"\n") for file in files)
    assert len(files) == (11 if keep is None else keep + 1)


def test_a_line_larger_than_a_file_is_cut(begin: Begin) -> None:
    """Output without an end of line does not grow a file beyond its limit either, and none of it is lost."""
    attempt = open_round(begin(redirects={0: 1}, rotation=Rotation(1500)))
    assert run(attempt, "print('a'); print('x' * 5000, end='')")
    files = contents(attempt.stdout_files[0])
    assert b"".join(files) == b"a\n" + b"x" * 5000
    assert all(len(file) <= 1500 for file in files)


def test_a_file_that_cannot_be_renamed_is_written_to_further(tmp_path: Path) -> None:
    """Its directory was removed with all that was in it: the worker gets no error, the trouble is reported once."""
    troubles: list[str] = []
    (tmp_path / "logs").mkdir()
    file = RotatingFile(f"{tmp_path}/logs/out", troubles.append, Rotation(1024))
    (tmp_path / "logs/out").unlink()
    (tmp_path / "logs").rmdir()
    for _ in range(5):
        file.write(b"x" * 999 + b"\n")
    file.close()
    assert len(troubles) == 1
    assert troubles[0].startswith(f"cannot rotate {tmp_path}/logs/out: No such file or directory")


def test_unfinished_lines_are_in_a_rotated_file_as_they_grow(tmp_path: Path) -> None:
    """A progress bar can be followed; where it outgrows the file, the whole line moves to the next one."""
    file = RotatingFile(str(tmp_path / "log"), lambda text: None, Rotation(1024))
    shown = tmp_path / "log"
    file.write(b"x" * 999 + b"\n")
    for step in (b"\r 10 %", b"\r 20 %", b"\r 30 %"):
        file.write(step)
        assert shown.read_bytes().endswith(step)
    file.write(b"\r" + b" 40 %" * 3 + b"\n")
    assert (tmp_path / "log.1").read_bytes() == b"x" * 999 + b"\n"
    assert shown.read_bytes() == b"\r 10 %\r 20 %\r 30 %\r 40 % 40 % 40 %\n"
    file.close()


@given(
    lengths=st.lists(st.integers(0, 1500), max_size=40),
    cuts=st.lists(st.integers(1, 700), min_size=1, max_size=20),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rotated_files_hold_every_byte_and_whole_lines(lengths: list[int], cuts: list[int], tmp_path: Path) -> None:
    """However the bytes arrive: in order, none twice, no file too large, no line in two files that fits into one."""
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    file = RotatingFile(str(folder / "log"), lambda text: None, Rotation(1024))
    text = b"".join(b"%03d" % (number % 1000) * (length // 3) + b"\n" for number, length in enumerate(lengths))
    at = 0
    for cut in itertools.cycle(cuts):
        if at >= len(text):
            break
        file.write(text[at : at + cut])
        at += cut
    file.close()
    files = contents(str(folder / "log"))
    assert b"".join(files) == text
    assert all(len(each) <= 1024 for each in files)
    for each in files[:-1]:
        line = each.rpartition(b"\n")[2]
        assert each.endswith(b"\n") or len(line) == len(each) or len(each) == 1024
