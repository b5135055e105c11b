"""Whether the account of workers' seconds holds in a run: it adds up to the time that the campaign measured."""

from __future__ import annotations

from typing import Any, NamedTuple

from simulation.checks.checkers import Violation

PART = 0.005
"""How far the buckets may be from the time that has passed."""
Line = dict[str, Any]


class Accounts(NamedTuple):
    """What was checked."""

    number: int
    worst: float
    """The largest part by which the buckets' sum was off the agent's wall clock, or outside what the campaign saw."""


def check_accounts(facts: list[Line], lines: dict[str, list[Line]]) -> Accounts:
    """Each account of each agent against the campaign's clock. Raises Violation."""
    started = {fact["node"]: fact["at_s"] for fact in facts if fact["what"] == "start"}
    checked, worst = 0, 0.0
    for name, written in lines.items():
        accounts = [line for line in written if line["what"] == "goodput"]
        before: Line | None = None
        for account in accounts:
            worst = max(worst, _adds_up(name, account, written[0]["at_s"], started[name]))
            _goes_on(name, before, account)
            before = account
        checked += len(accounts)
        if any(line["what"] == "concluded" for line in written) and not accounts:
            raise Violation(f"an agent that ends says where the time went; but {name} did not")
    return Accounts(checked, worst)


def _adds_up(name: str, account: Line, first_s: float, started_s: float) -> float:
    """The agent began after its process did, and before its first event. Returns how far it is off, as a part."""
    each_s = sum(account["buckets"].values()) / account["workers"]
    least_s, most_s = account["at_s"] - first_s, account["at_s"] - started_s
    if not least_s * (1 - PART) <= each_s <= most_s * (1 + PART):
        raise Violation(
            f"buckets add up to the time that has passed; but {name} has {each_s:.3f} s a worker after {least_s:.3f} s "
            f"to {most_s:.3f} s: {account['buckets']}"
        )
    if any(length_s < 0 for length_s in account["buckets"].values()):
        raise Violation(f"no bucket is less than empty; but {name} has {account['buckets']}")
    lost_s = sum(each["length_s"] for each in account["lost"])
    good_s = sum(account["buckets"][bucket] for bucket in ("useful steps", "saving", "not measured"))
    if abs(lost_s + good_s - each_s * account["workers"]) > 0.001 * account["workers"] + 1e-3:
        raise Violation(f"what is not lost is of use; but of {name} {lost_s:.3f} s and {good_s:.3f} s: {account}")
    off_s = max(abs(each_s - account["wall_s"]), least_s - each_s, each_s - most_s)
    return off_s / account["wall_s"] if account["wall_s"] else 0.0


def _goes_on(name: str, before: Line | None, account: Line) -> None:
    if before is not None and account["workers"] == before["workers"] and account["wall_s"] < before["wall_s"]:
        raise Violation(f"time goes on; but {name} went from {before['wall_s']} s to {account['wall_s']} s")
