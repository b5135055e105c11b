"""What a job's events say beside its rounds: which led to which, how long each stage took, where the time went. Pure.

Events are as `story.normal` makes them; those of several nodes have one set of ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...rendezvous.text import count, duration

Event = Mapping[str, Any]
LONGEST = 50
"""Causes that are followed back; a loop of them is none that an agent writes."""
SHOWN_MIN = 0.0005
"""Parts of the time below this are not listed."""


def by_id(events: Iterable[Event]) -> dict[str, Event]:
    """Each event by its id; the first where several files have one."""
    found: dict[str, Event] = {}
    for event in events:
        if event.get("id"):
            found.setdefault(event["id"], event)
    return found


def chain(known: Mapping[str, Event], event: Event) -> list[Event]:
    """This event, the one that caused it, and so on, as far as they are known."""
    found, cause = [event], event.get("cause", "")
    while cause in known and len(found) < LONGEST:
        found.append(known[cause])
        cause = found[-1].get("cause", "")
    return found


def causes_of(known: Mapping[str, Event], events: Iterable[Event], round_number: int) -> list[str]:
    """Why this round ended, one line an event: from the end back to what came first, each sentence once."""
    over = next((each for each in events if _is_over(each, round_number)), None)
    if over is None:
        over = next((each for each in events if _notices(each, round_number)), None)
    lines: list[str] = []
    said: set[str] = set()
    for event in chain(known, over)[1:] if over is not None else ():
        text = event.get("because", "")
        if text and text not in said:
            said.add(text)
            lines.append(f"{event['node']}: {text}")
    return lines


def _is_over(event: Event, round_number: int) -> bool:
    return bool(event["what"] == "announced" and event["phase"] == "over" and event["round"] == round_number)


def _notices(event: Event, round_number: int) -> bool:
    return bool(event.get("stage") == "noticed" and event["round"] == round_number)


def stages_of(events: Iterable[Event], round_number: int) -> list[tuple[str, float]]:
    """How long each stage took from the end of this round to the first step of the next: of the slowest node."""
    longest: dict[str, float] = {}
    for event in events:
        if event["what"] != "stage":
            continue
        ends = event["stage"] in ("noticed", "stopped")
        if event["round"] == (round_number if ends else round_number + 1):
            longest[event["stage"]] = max(longest.get(event["stage"], 0.0), event["took_s"])
    order = ("stopped", "agreed", "started", "imported", "first step")
    return [(name, longest[name]) for name in order if name in longest]


def by_wall_clock(events: Sequence[Event]) -> bool:
    """Whether these events are compared by the wall clock: of several hosts, it is all that they share."""
    hosts = {event["node"].rpartition(":")[0] for event in events}
    return len(hosts) > 1 and all(event.get("time_s") for event in events)


def in_order(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By the monotonic clock of their host, or by the wall clock, which their `at_s` is then."""
    if by_wall_clock(events):
        events = [{**event, "at_s": event["time_s"]} for event in events]
    return sorted(events, key=lambda event: float(event["at_s"]))


def starts(events: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The events of each start of the job, the oldest first: a file that they share has them one after the other, and
    each numbers its rounds and announcements from 1. One list, where it cannot be told."""
    agents = _agents(events)
    first, last = dict[str, float](), dict[str, float]()
    for event, agent in agents:
        first.setdefault(agent, _time_s(event))
        last[agent] = _time_s(event)
    of: dict[str, int] = {}
    begins = [float("-inf")]
    newest = 0
    for event, agent in agents:
        version = event.get("version", 0) if event["what"] == "announced" else 0
        if version and version < newest and agent not in of:
            # Its coordinator numbers from 1 again, and did so from the first event of its agent on.
            begins.append(first[agent])
            newest = 0
        if version:
            newest = max(newest, version)
            of.setdefault(agent, len(begins) - 1)
    found: list[list[dict[str, Any]]] = [[] for _ in begins]
    for event, agent in agents:
        # One that never coordinates may begin before those that do, but ends before the next start.
        before = sum(begin_s <= last[agent] for begin_s in begins) - 1
        found[of.get(agent, before)].append(event)
    return found


def _agents(events: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], str]]:
    """Each event with its agent, by their time. The first process of each container has the same name as the one before
    it, which has concluded. An account that a running agent gave has no time: it is of now."""
    ended: dict[str, int] = {}
    found = []
    for event in sorted(events, key=_time_s):
        node = event["node"]
        found.append((event, f"{node} {ended.get(node, 0)}"))
        ended[node] = ended.get(node, 0) + (event["what"] == "concluded")
    return found


def _time_s(event: Event) -> float:
    return float(event.get("time_s") or event.get("at_s") or float("inf"))


class Account:
    """Where the seconds of workers went, on all nodes whose accounts are known."""

    def __init__(self, accounts: Sequence[Event]) -> None:
        self.buckets: dict[str, float] = {}
        self.causes: dict[str, float] = {}
        self.nodes: dict[str, float] = {}
        self.workers = sum(each["workers"] for each in accounts)
        self.measured = any(each["measured"] for each in accounts)
        for account in accounts:
            for bucket, length_s in account["buckets"].items():
                self.buckets[bucket] = self.buckets.get(bucket, 0.0) + length_s
            for lost in account["lost"]:
                of = (
                    f"round {lost['round']}, " if lost["round"] else "" if lost["kind"] == "start" else "other rounds, "
                )
                kind = f"{of}{lost['kind']}"
                self.causes[kind] = self.causes.get(kind, 0.0) + lost["length_s"]
                if lost.get("node"):
                    self.nodes[lost["node"]] = self.nodes.get(lost["node"], 0.0) + lost["length_s"]

    @property
    def all_s(self) -> float:
        """Of all workers together."""
        return sum(self.buckets.values())

    @property
    def share(self) -> float:
        """Of useful steps."""
        return self.buckets.get("useful steps", 0.0) / self.all_s if self.all_s else 0.0

    def lines(self) -> list[str]:
        """For people; nothing where no account is known."""
        if not self.all_s:
            return []
        of = f"{duration(self.all_s)} of {count(self.workers, 'worker')}: {self._parts(self.buckets)}"
        found = [f"goodput {100 * self.share:.1f} % of {of}" if self.measured else f"goodput is not measured; {of}"]
        if self.causes:
            found.append(f"lost, by the round whose end cost it: {self._parts(self.causes)}")
        if self.nodes:
            found.append(f"lost, by the node that caused it: {self._parts(self.nodes)}")
        return found

    def _parts(self, parts: Mapping[str, float]) -> str:
        longest = sorted(parts.items(), key=lambda each: -each[1])
        return ", ".join(
            f"{name} {duration(length_s)}" for name, length_s in longest if length_s > SHOWN_MIN * self.all_s
        )


def accounts_of(events: Iterable[Event]) -> list[Event]:
    """The newest account of each agent."""
    newest: dict[str, Event] = {}
    for event in events:
        if event["what"] == "goodput" and event["wall_s"] >= newest.get(event["node"], event)["wall_s"]:
            newest[event["node"]] = event
    return list(newest.values())


def as_account(message: Event) -> dict[str, Any]:
    """The answer to Goodput, as a line of the file has it."""
    return {
        "what": "goodput",
        "node": message["name"],
        "wall_s": message["wallS"],
        "workers": message["workers"],
        "measured": message["measured"],
        "ranks": message["ranks"],
        "buckets": {each["bucket"]: each.get("lengthS", 0.0) for each in message["buckets"]},
        "lost": [
            {
                "round": each.get("round", 0),
                "kind": each["kind"],
                "length_s": each.get("lengthS", 0.0),
                "node": each.get("node", ""),
                "because": each.get("because", ""),
            }
            for each in message["lost"]
        ],
    }
