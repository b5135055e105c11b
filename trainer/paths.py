"""Where a program stood and looked for modules when its trainer was made: so do all its workers, also later ones."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from .names import PATHS
from .pickled_values import private


def write(folder: str, modules: Sequence[str]) -> None:
    """For the workers of this host. modules: that they need. Relative paths are those of now: the program may change
    its directory before a worker is started again."""
    paths = [os.path.abspath(path) if os.path.exists(path or ".") else path for path in sys.path]
    found = {"cwd": os.getcwd(), "paths": paths, "modules": list(modules)}
    with open(os.path.join(folder, PATHS), "w", encoding="utf-8", opener=private) as file:
        json.dump(found, file)


def take(folder: str) -> list[str]:
    """In a worker: stand there, and look there for modules. Returns those that the program needs."""
    with open(os.path.join(folder, PATHS), encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    if os.getcwd() != found["cwd"]:
        os.chdir(found["cwd"])
    sys.path[:] = [*sys.path, *(path for path in found["paths"] if path not in sys.path)]
    modules: list[str] = found["modules"]
    return modules
