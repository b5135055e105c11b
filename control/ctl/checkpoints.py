"""The checkpoints that the worker library keeps in a directory, by what their manifests say. Reads no other file."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from .call import Message

MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d+)(-.*)?")
UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
LOOK_S = 0.5
"""How long a file system has to show what is in a directory."""


def kept(directory: str) -> list[Message]:
    """Each checkpoint: name, step, round, label, bytes, when it was written, and why it cannot be read, if so. The
    newest first, by their steps."""
    found = []
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if entry.is_dir() and _NAME.fullmatch(entry.name)]
    for name in sorted(names, key=lambda name: (_step(name), name), reverse=True):
        path = Path(directory, name, MANIFEST)
        one: Message = {"name": name, "step": _step(name), "problem": ""}
        try:
            manifest = json.loads(path.read_bytes())
            one |= {
                "step": int(manifest["step"]),
                "round": int(manifest["round"]),
                "label": str(manifest.get("label", "")),
                "ranks": int(manifest["run"]["world_size"]),
                "bytes": sum(int(content["length"]) for content in manifest["files"].values()),
                "time_s": path.stat().st_mtime,
            }
        except FileNotFoundError:
            one["problem"] = f"no {MANIFEST}: not finished"
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            one["problem"] = f"{MANIFEST} cannot be read: {error}"
        found.append(one)
    return found


def newest(directory: str) -> Message | None:
    """The newest checkpoint whose manifest can be read; None where there is none, or the file system does not answer
    within `LOOK_S`: what it is needed for must not wait for a dead file server."""
    found: list[Message] = []

    def look() -> None:
        try:
            found.extend(one for one in kept(directory) if not one["problem"])
        except OSError:
            pass  # no such directory here: the job runs on other hosts, or has saved nothing yet

    thread = threading.Thread(target=look, name="elasticctl-checkpoints", daemon=True)
    thread.start()
    thread.join(LOOK_S)
    return found[0] if found and not thread.is_alive() else None


def _step(name: str) -> int:
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else 0


def _size(length: int) -> str:
    unit, bytes_of = next((each for each in UNITS if length >= each[1]), ("bytes", 1))
    return f"{length / bytes_of:.3g} {unit}" if bytes_of > 1 else f"{length} bytes"


def table(found: Sequence[Message]) -> list[str]:
    """The checkpoints as lines of text."""
    if not found:
        return ["no checkpoints here"]
    lines = []
    for one in found:
        if one["problem"]:
            lines.append(f"{one['name']:<16}  {one['problem']}")
            continue
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one["time_s"]))
        label = f"  kept as {one['label']!r}" if one["label"] else ""
        where = f"round {one['round']}" if one["round"] else "no agent"
        lines.append(f"{one['name']:<16}  {when}  {where}, {one['ranks']} ranks, {_size(one['bytes'])}{label}")
    return lines
