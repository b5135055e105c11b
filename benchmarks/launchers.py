"""The launchers under test, as command templates."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

ROOT = Path(__file__).resolve().parent.parent
TORCHRUN = "torchrun"
INSTALLED = "elastic-agent"
FROM_REPOSITORY = "PYTHONPATH={root}/.typing {python} -m elastic_agent"
"""Runs without an installation: `.typing/elastic_agent` is a link to the repository root."""
FLOOR = "{python} {root}/benchmarks/scripts/floor.py"


@final
@dataclass(frozen=True)
class Launcher:
    """A launcher under test: a command line, with `NAME=VALUE` words before it for its environment.

    `{python}` stands for this interpreter, `{root}` for the repository; `floor` alone for `scripts/floor.py`.
    """

    key: str
    template: str

    def _words(self) -> list[str]:
        text = FLOOR if self.template == "floor" else self.template
        return [word.replace("{python}", sys.executable).replace("{root}", str(ROOT)) for word in shlex.split(text)]

    @property
    def env(self) -> dict[str, str]:
        words = self._words()
        return dict(word.split("=", 1) for word in words[: self._assignments(words)])

    @property
    def argv(self) -> list[str]:
        words = self._words()
        return words[self._assignments(words) :]

    @staticmethod
    def _assignments(words: Sequence[str]) -> int:
        return next((i for i, word in enumerate(words) if not word.split("=")[0].isidentifier() or "=" not in word), 0)


def candidate() -> str:
    """The installed elastic-agent, if there is one beside this interpreter; else the one of the repository."""
    return INSTALLED if (Path(sys.executable).parent / INSTALLED).exists() else FROM_REPOSITORY
