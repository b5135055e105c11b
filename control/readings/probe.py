"""Run as a program of its own, in a process that may be lost: questions to a file system that may never answer.

Imports nothing of ours. For each line that it reads it looks once, and prints numbers, one answer a line, and an empty
line behind them.
"""

from __future__ import annotations

import os
import sys

ENTRIES_MAX = 200_000
"""Files that are looked at in a directory of checkpoints."""
LAST = 5
"""How many checkpoints are read for their size and interval."""


def statvfs(path: str) -> None:
    """Bytes: all, free to users, used; inodes: all, free to users, used."""
    found = os.statvfs(path)
    block = found.f_frsize
    print(found.f_blocks * block, found.f_bavail * block, (found.f_blocks - found.f_bfree) * block)
    print(found.f_files, found.f_favail, found.f_files - found.f_ffree)


def newest(pattern: str) -> None:
    """Time of change, size and inode of the newest file that the pattern names; nothing where there is none."""
    from glob import glob

    found = []
    for path in [pattern] if os.path.exists(pattern) else glob(pattern, recursive=True):
        try:
            entry = os.stat(path)
        except OSError:
            continue  # removed meanwhile
        found.append((entry.st_mtime, entry.st_size, entry.st_ino))
    if found:
        print(*max(found))


def checkpoints(path: str) -> None:
    """(time, bytes, last number of the name) of the last checkpoints below a directory.

    Those are entries whose names differ only in numbers, such as step-100 and step-200; of several such families the
    one with the most bytes.
    """
    families: dict[str, list[tuple[float, float, int]]] = {}
    left = ENTRIES_MAX
    for entry in os.scandir(path):
        form, number = _form(entry.name)
        if entry.name.startswith(".") or number is None:
            continue
        time, size, seen = _measure(entry.path, left)
        left -= seen
        if left <= 0:
            break
        families.setdefault(form, []).append((time, size, number))
    several = [family for family in families.values() if len(family) > 1]
    if several:
        for time, size, number in sorted(max(several, key=lambda family: sum(size for _, size, _ in family)))[-LAST:]:
            print(time, size, number)


def holds(path: str) -> None:
    """Seconds for which saves of the worker library held the training up, as the manifests below a directory say."""
    import json

    for entry in os.scandir(path):
        try:
            with open(os.path.join(entry.path, "manifest.json"), encoding="utf-8") as file:
                held = json.load(file)["made_by"].get("held_s", 0)
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            continue  # no checkpoint of the library, or one that was removed meanwhile
        if held:
            print(float(held))


def _form(name: str) -> tuple[str, int | None]:
    """A name with `#` in place of each number, and the last of them; None: there is none. Without `re`, whose import
    takes as long as all else of this program."""
    form, number, before = "", "", ""
    for letter in name:
        if letter.isdecimal():
            number = number + letter if before.isdecimal() else letter
        form += letter if not letter.isdecimal() else "" if before.isdecimal() else "#"
        before = letter
    return form, int(number) if number else None


def _measure(path: str, most: int) -> tuple[float, float, int]:
    """(time of the newest file, bytes on disk, files) of a file or a directory."""
    time, size, seen, waiting = 0.0, 0.0, 0, [path]
    while waiting and seen < most:
        here = waiting.pop()
        try:
            found = os.lstat(here)
            if os.path.isdir(here) and not os.path.islink(here):
                waiting += [entry.path for entry in os.scandir(here)]
            else:
                time = max(time, found.st_mtime)
                size += found.st_blocks * 512
        except OSError:
            continue  # removed meanwhile
        seen += 1
    return time, size, seen


if __name__ == "__main__":
    look = {"statvfs": statvfs, "newest": newest, "checkpoints": checkpoints, "holds": holds}[sys.argv[1]]
    try:
        for _ in sys.stdin:
            look(sys.argv[2])
            print(flush=True)
    except OSError as error:
        sys.exit(f"{error.strerror}: {sys.argv[2]}")
