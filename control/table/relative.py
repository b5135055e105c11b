"""A table of watches that goes to a process in another directory: its relative paths are made absolute first."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from datetime import date, time

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PATHS = ("path", "dumps", "save_switch", "kill_switch")


def with_absolute_paths(text: str, folder: str) -> str:
    """The same table, its paths below this folder. A text that is no table is left to whoever reads it, and says what
    is wrong with it. `~` is left, too: it is the home of the one who reads."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return text
    watches = found.get("watch")
    tables = [found, *(each for each in (watches if isinstance(watches, list) else ()) if isinstance(each, dict))]
    for each in tables:
        for key in PATHS:
            value = each.get(key)
            if isinstance(value, str) and value.strip() and not value.startswith("~"):
                each[key] = os.path.join(folder, value)
    return "".join(f"{json.dumps(key)} = {_toml(value)}\n" for key, value in found.items())


def _toml(value: object) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", r"\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(key)} = {_toml(each)}' for key, each in value.items())}}}"
    return repr(value)
