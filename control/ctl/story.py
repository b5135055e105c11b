"""The story of a job from its events: each round, why it began and ended, whom it charged, what it cost. Pure.

Events are those of a control socket, or lines of the file that ELASTIC_AGENT_EVENTS names, of one agent or of several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...rendezvous.text import count, duration
from ..event_lines import Event, normal
from .causes import Account, accounts_of, by_id, by_wall_clock, causes_of, in_order, stages_of, starts

FAILED = "failed"
"""The outcome of a job that had no restart left, or may have none."""


@dataclass
class RoundStory:
    """One round of a job: when it began and ended, why, whom it charged."""

    number: int
    because: str = ""
    began_s: float | None = None
    ended_s: float | None = None
    nodes: tuple[str, ...] = ()
    workers: int = 0
    kind: str = ""
    why: str = ""
    charged: str = ""
    failure: str = ""
    causes: tuple[str, ...] = ()
    """What led to its end, back to what came first."""
    stages: tuple[tuple[str, float], ...] = ()
    """How long each stage took until the first step of the next round."""


@dataclass
class Story:
    """A job, as far as its events show."""

    rounds: list[RoundStory] = field(default_factory=list)
    began_s: float = 0.0
    ended_s: float = 0.0
    ends: list[str] = field(default_factory=list)
    """How each agent ended."""
    outcome: str = ""
    live: bool = False
    """Whether the job runs, and `ended_s` is now."""
    missed: int = 0
    """Events that are not kept any more."""
    account: Account = field(default_factory=lambda: Account(()))
    """Where the time of the workers went."""

    def ended_job(self, round_: RoundStory) -> bool:
        """Whether the job failed with this round: then its end was charged to a node, and nothing was started again."""
        return self.outcome == FAILED and round_ is self.rounds[-1]

    @property
    def lost_s(self) -> float:
        """Between rounds: from the end of one to the beginning of the next."""
        return sum(pause_s for pause_s in map(self.pause_s, self.rounds) if pause_s is not None)

    def pause_s(self, round_: RoundStory) -> float | None:
        """From the end of this round to the beginning of the next; None if there is none, or it is not known."""
        later = next((each for each in self.rounds if each.number > round_.number and each.began_s is not None), None)
        if later is None or later.began_s is None or round_.ended_s is None:
            return None
        return max(0.0, later.began_s - round_.ended_s)


def stories_of(events: Iterable[Event], now: Mapping[bool, float] | None = None) -> list[Story]:
    """The stories of these events, which may come in any order: one of each start of the job, the oldest first. `now`:
    where they are of agents that run, by whether events of several hosts are compared, on the clock that is used."""
    every = [normal(event) for event in events]
    return [_story_of(each, now if number == 0 else None) for number, each in enumerate(starts(every)[::-1])][::-1]


def story_of(events: Iterable[Event]) -> Story:
    """The story of events of one start."""
    return stories_of(events)[-1]


def _story_of(every: list[dict[str, Any]], now: Mapping[bool, float] | None) -> Story:
    found = in_order([event for event in every if event["what"] != "goodput"])
    story, rounds = Story(), dict[int, RoundStory]()
    names: dict[str, str] = {}
    for event in found:
        story.began_s = story.began_s or event["at_s"]
        story.ended_s = event["at_s"]
        story.missed += event.get("missed") or 0
        names |= {member["node"]: member["name"] for member in event["members"]}
        if event["what"] == "concluded":
            story.ends.append(f"{event['node']}: exit {event.get('exit_code', 0)}: {event['because']}")
        elif event["what"] == "announced":
            _announced(event, rounds, names, story)
        elif event["what"] == "event":
            _happened(event, rounds)
    if now is not None and not story.outcome and not story.ends:
        story.live, story.ended_s = True, max(story.ended_s, now[by_wall_clock(found)])
    known = by_id(found)
    for round_ in rounds.values():
        round_.causes = tuple(causes_of(known, found, round_.number))
        round_.stages = tuple(stages_of(found, round_.number))
    story.account = Account(accounts_of(every))
    story.rounds = [rounds[number] for number in sorted(rounds) if rounds[number].began_s is not None]
    return story


def _announced(event: Event, rounds: dict[int, RoundStory], names: Mapping[str, str], story: Story) -> None:
    round_ = rounds.setdefault(event["round"], RoundStory(event["round"]))
    if event["phase"] == "running" and round_.began_s is None:
        _begin(round_, event)
    if event["phase"] in ("over", "closed") and round_.ended_s is None and round_.began_s is not None:
        round_.ended_s, round_.why = event["at_s"], round_.why or event["because"]
    if ended := event.get("ended"):
        of = rounds.setdefault(ended["round"], RoundStory(ended["round"]))
        of.kind, of.why = ended["kind"], ended["because"]
        charged = ended.get("charged", "")
        of.charged, of.failure = names.get(charged, charged), ended.get("failure", "")
        of.ended_s = of.ended_s or event["at_s"]
    story.outcome = event.get("outcome") or story.outcome


def _happened(event: Event, rounds: dict[int, RoundStory]) -> None:
    """The same from an event of a node that does not coordinate."""
    if not event["round"]:
        return
    round_ = rounds.setdefault(event["round"], RoundStory(event["round"]))
    if event["phase"] == "working" and round_.began_s is None:
        _begin(round_, event)
    if event["phase"] in ("stopping", "ending") and round_.ended_s is None and round_.began_s is not None:
        round_.ended_s, round_.why = event["at_s"], round_.why or event["because"]
    if event.get("failure") and not round_.failure:
        round_.failure = event["failure"]


def _begin(round_: RoundStory, event: Event) -> None:
    round_.began_s, round_.because = event["at_s"], event["because"]
    round_.nodes = tuple(member["name"] for member in event["members"])
    round_.workers = sum(member.get("nproc", 0) for member in event["members"])


def lines(story: Story) -> list[str]:
    """The story for people."""
    if not story.rounds and not story.ends:
        return ["these events contain no round"]
    charged = sum(1 for round_ in story.rounds if round_.charged and not story.ended_job(round_))
    took = duration(max(0.0, story.ended_s - story.began_s))
    until = "" if story.live or story.outcome or story.ends else " until the last of these events"
    found = [
        f"{count(len(story.rounds), 'round')} in {took}{until}, {count(charged, 'restart')} charged, "
        f"{duration(story.lost_s)} between rounds" + (f"; the job {story.outcome}" if story.outcome else "")
    ]
    found += story.account.lines()
    if lost := _lost(story):
        found.append(f"between rounds, by what ended the one before: {lost}")
    if story.missed:
        found.append(f"{count(story.missed, 'event')} before these are not kept; ELASTIC_AGENT_EVENTS keeps all")
    for round_ in story.rounds:
        found += ["", *_of_round(story, round_)]
    return found + (["", *story.ends] if story.ends else [])


def _lost(story: Story) -> str:
    """Time between rounds by what ended the round before, and by the node that was charged; the longest first."""
    by_cause: dict[str, float] = {}
    for round_ in story.rounds:
        if (pause_s := story.pause_s(round_)) is not None:
            cause = (round_.kind or "unknown") + (f" on {round_.charged}" if round_.charged else "")
            by_cause[cause] = by_cause.get(cause, 0.0) + pause_s
    longest = sorted(by_cause.items(), key=lambda each: -each[1])
    return ", ".join(f"{cause} {duration(lost_s)}" for cause, lost_s in longest)


def _of_round(story: Story, round_: RoundStory) -> list[str]:
    at = duration((round_.began_s or 0.0) - story.began_s)
    who = f"{count(len(round_.nodes), 'node')}, {count(round_.workers, 'worker')}"
    found = [f"round {round_.number}  began {at} into the job with {who}: {round_.because}"]
    if round_.ended_s is None or round_.began_s is None:
        return [*found, "  still running, or its end is not in these events"]
    ran = duration(max(0.0, round_.ended_s - round_.began_s))
    kind = f" by {round_.kind}" if round_.kind else ""
    found.append(f"  ran {ran}, ended{kind}: {round_.why}")
    if round_.failure and round_.failure not in round_.why:
        found.append(f"  {round_.failure}")
    found += [f"  caused by  {cause}" for cause in round_.causes if cause.partition(": ")[2] not in round_.why]
    if round_.charged:
        left = "had no restart left" if story.ended_job(round_) else "is charged a restart"
        found.append(f"  {round_.charged} {left}")
    if (pause_s := story.pause_s(round_)) is not None:
        found.append(f"  {duration(pause_s)} until the next round began")
        if round_.stages:
            stages = ", ".join(f"{name} after {duration(took_s)}" for name, took_s in round_.stages)
            found.append(f"  then, of the slowest node: {stages}")
    return found


def all_lines(stories: Sequence[Story]) -> list[str]:
    """The stories of several starts for people, each with its number."""
    if len(stories) == 1:
        return lines(stories[0])
    found: list[str] = []
    for number, story in enumerate(stories, 1):
        found += [f"start {number} of {len(stories)}", "", *lines(story), ""]
    return found[:-1]


def as_message(story: Story) -> dict[str, Any]:
    """The story for programs."""
    return {
        "rounds": [vars(each) for each in story.rounds],
        "ends": story.ends,
        "outcome": story.outcome,
        "goodput": vars(story.account) | {"share": story.account.share},
    }
