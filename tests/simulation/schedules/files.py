"""Schedules as files: those in `found` once led to a violation, or find a planted bug that few seeds find, made as
small as they get.

They are kept whole, because what a seed stands for may change. A field that has its default value is left out.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from elastic_agent.agent.lifecycle.restart_policy import Policy

from ..world.job import Job
from ..world.workers import Habit
from .faults import Fault
from .scenario import Founder, Pace, Scenario

FOUND_IN = Path(__file__).parent / "found"


def read(path: Path) -> tuple[str, Scenario]:
    """What is special about a schedule, and the schedule. Raises TypeError for a field that no scenario has."""
    return parse(path.read_text())


def parse(text: str) -> tuple[str, Scenario]:
    """As `read`, of what is in a file."""
    held = json.loads(text)
    job = held.pop("job")
    parts: dict[str, Any] = {
        "job": Job(**{**job, "restarts": Policy(**job.get("restarts", {}))}),
        "habit": Habit(**held.pop("habit")),
        "pace": Pace(**held.pop("pace")),
        "founders": tuple(Founder(**each) for each in held.pop("founders")),
        "faults": tuple(Fault(**each) for each in held.pop("faults")),
    }
    return held.pop("found"), Scenario(**parts, **held)


def text(found: str, scenario: Scenario) -> str:
    """What is in the file of a schedule: a field a line, and each node and each fault on a line of its own."""
    fields = {"found": found, **_plain(scenario), "founders": [*scenario.founders], "faults": [*scenario.faults]}
    lines = [f"  {json.dumps(name)}: {_laid_out(value)}" for name, value in fields.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _laid_out(value: object) -> str:
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(f"    {json.dumps(_plain(each))}" for each in value) + "\n  ]"


def _plain(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults."""
    made: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        held = getattr(value, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        if held != default:
            made[field.name] = _plain(held) if dataclasses.is_dataclass(held) else held
    return made


def path_of(found: str) -> Path:
    """Where the schedule is kept that found this."""
    return FOUND_IN / f"{'_'.join(found.replace(',', '').split())}.json"


FOUND: dict[str, Scenario] = dict(read(path) for path in sorted(FOUND_IN.glob("*.json")))
"""By what is special about each."""
