"""Who may commit to a directory: the processes that began there last, and no older ones that still live.

The fence is a file, `round.json`. The order makes it tight without a lock: a start writes the fence, then removes what
is half written, then looks which checkpoints there are; a commit asks for the fence after all its files are written,
then gives the folder its name. So a commit that came before is seen by the start, and one that comes after finds either
another fence or its folder gone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import WrongState
from .files import place_file, read_file

NAME = "round.json"
_MOST_NODES = 1000
"""Agents of a job that the file keeps."""
_MOST_STARTS = 64
"""Starts that the file keeps."""


@dataclass(frozen=True)
class Claim:
    """One start of a run: all of its ranks."""

    token: str
    """No other start has it."""
    round: int = 0
    """The agents' number of the round; 0 without agents."""
    nodes: tuple[str, ...] = ()
    """Identities of the agents in it: by them two rounds are known to be of the same job."""


def claim(folder: Path, mine: Claim) -> list[str]:
    """From now on only this start commits to the folder. Gives the tokens of those that did before, the oldest first.

    Raises WrongState where a newer round of the same job has begun there: this one is over.
    """
    there = _read(folder)
    known = set(there.get("nodes", ()))
    same_job = bool(known & set(mine.nodes))
    if same_job and there["round"] > mine.round:
        raise WrongState(
            f"round {there['round']} of this job writes to {folder} now; this is round {mine.round}, which is over"
        )
    nodes = sorted((known if same_job else set()) | set(mine.nodes))[-_MOST_NODES:]
    over = [token for token in there.get("starts", []) if token != mine.token][-_MOST_STARTS:]
    fence = {"round": mine.round, "token": mine.token, "nodes": nodes, "starts": [*over, mine.token]}
    place_file(folder / f".{NAME}.{mine.token}", folder / NAME, json.dumps(fence).encode())
    return over


def check(folder: Path, mine: Claim) -> None:
    """Raises WrongState where another start has claimed the folder since."""
    there = _read(folder)
    if there and there["token"] != mine.token:
        begun = f"round {there['round']}" if there["round"] else "another start of the run"
        ours = f"round {mine.round}" if mine.round else "this one"
        raise WrongState(f"{begun} writes to {folder} now; {ours} is over")


def _read(folder: Path) -> dict[str, Any]:
    """Empty where there is no fence, or none that can be understood."""
    try:
        kept = json.loads(read_file(folder / NAME))
        token = str(kept["token"])
        starts = [str(start) for start in kept.get("starts", [token])]
        nodes = [str(node) for node in kept.get("nodes", [])]
        return {"round": int(kept["round"]), "token": token, "nodes": nodes, "starts": starts}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {}
