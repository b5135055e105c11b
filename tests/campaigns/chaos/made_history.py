"""Histories of jobs that never ran, for tests of the judge: one that breaks no rule, and others to break."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from campaigns.chaos.judge import judge
from campaigns.chaos.plan import Plan, Start
from campaigns.test_chaos import Lines


class MadeHistory:
    """The history of a run, which `judge` writes into a folder and then judges."""

    def __init__(self) -> None:
        self.ended = crash_of(1)
        self.announced_version = 0
        starts = tuple(Start(f"n{index}", "launch", 0.0, 1, False, 0.0) for index in range(2))
        self.plan = Plan(1, 2, 2, 1, 7.0, 0.6, 0.3, 3.0, 10.0, 1.0, 2.0, 0.0, starts, ())
        self.facts: Lines = []
        self.events: dict[str, Lines] = {"n0": [], "n1": []}
        self.stderr = dict.fromkeys(self.events, "elastic-agent: exit 0: all is well\n")
        self._now = 100.0
        self._make()

    def later(self, by_s: float = 0.1) -> float:
        self._now += by_s
        return self._now

    def fact(self, what: str, node: str, **more: Any) -> None:
        self.facts.append({"what": what, "at_s": self.later(), "node": node, **more})

    def event(self, node: str, phase: str, number: int, happened: str, **more: Any) -> None:
        event = {"phase": phase, "round": number, "because": "made up", "happened": happened, "restarts_used": 0}
        self.events[node].append(
            {"what": "event", "at_s": self.later(), "node": node, "members": members(), **event, **more}
        )

    def announced(self, version: int, number: int, phase: str, **more: Any) -> None:
        rest = {"because": "made up", "restarts": 0, "finishing": False, "ended": None, "outcome": None}
        line = {"version": version, "number": number, "phase": phase, "members": members(), **rest, **more}
        line["master"], self.announced_version = f"here:{number}", version
        self.events["n0"].append({"what": "announced", "at_s": self.later(), "node": "n0", **line})

    def _make(self) -> None:
        self._begin()
        self._interrupt()
        for name in self.events:
            self.event(name, "joining", 1, "WorkersGone")
        self._round(2)
        self.later(5.0)
        self._end()

    def _begin(self) -> None:
        for index, name in enumerate(self.events):
            self.fact("start", name, pid=10 + index, nproc=1)
            self.event(name, "joining", 0, "StoreOpened", members=[])
        self.announced(1, 1, "running")
        self._round(1)
        self.later(5.0)

    def _interrupt(self) -> None:
        self._crash(1, version=2)
        self.announced(3, 2, "running", restarts=1, ended=self.ended)

    def _end(self) -> None:
        for name in self.events:
            self.fact("order", name, round=2, pid=200, how="exit 0")
            self.event(name, "finished", 2, "WorkersGone")
        self.announced(
            self.announced_version + 1, 2, "closed", finishing=True, ended=self.ended, outcome="succeeded", members=[]
        )
        self._leave(2, {"n1": 0, "n0": 0}, "succeeded")

    def _leave(self, number: int, codes: dict[str, int], outcome: str) -> None:
        for name, code in codes.items():
            self.event(name, "ending", number, "RoundSeen")
            self.event(name, "ended", number, "RecordWritten")
            self._account(name)
            verdict = {"exit_code": code, "because": "made up", "outcome": outcome}
            self.events[name].append({"what": "concluded", "at_s": self.later(), "node": name, **verdict})
            self.fact("ended", name, code=code, alive=[])

    def _account(self, name: str) -> None:
        """As if its worker had lost no time."""
        at_s, first_s = self.later(), self.events[name][0]["at_s"]
        buckets = {"useful steps": at_s - first_s, "saving": 0.0, "not measured": 0.0}
        account = {"workers": 1, "wall_s": at_s - first_s, "buckets": buckets, "lost": []}
        self.events[name].append({"what": "goodput", "at_s": at_s, "node": name, **account})

    def _crash(self, number: int, version: int) -> None:
        self.fact("order", "n1", round=number, pid=100 * number + 1, how="exit 3")
        self.event("n1", "stopping", number, "WorkerExited", failure="rank 1")
        self.announced(version, number, "over")
        self.event("n0", "stopping", number, "RoundSeen")

    def _round(self, number: int) -> None:
        for name in self.events:
            self.event(name, "working", number, "RoundSeen")
        for rank, name in enumerate(self.events):
            self.fact(
                "worker", name, round=number, rank=rank, local_rank=0, world_size=2, pid=100 * number + rank,
                restarts=int(number == 2 and "ab"[rank] == self.ended["charged"]), master=f"here:{number}",
                ident="ab"[rank], alive=[], started_s=self.later(),
            )  # fmt: skip

    def judge(self, folder: Path) -> str:
        """What is wrong, in one line; empty if nothing is."""
        (folder / "plan.json").write_text(json.dumps(self.plan.as_dict()))
        (folder / "facts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in self.facts))
        for name, lines in self.events.items():
            (folder / f"events-{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            (folder / f"stderr-{name}.txt").write_text(self.stderr[name])
        return "; ".join(judge(folder).wrong)

    def the_fact(self, what: str, node: str, **more: Any) -> dict[str, Any]:
        return next(f for f in self.facts if f["what"] == what and f["node"] == node and more.items() <= f.items())

    def announcement(self, version: int) -> dict[str, Any]:
        return next(line for line in self.events["n0"] if line.get("version") == version)


class TwoCrashes(MadeHistory):
    """n1's worker crashes twice, and its one restart is spent."""

    def _end(self) -> None:
        self.stderr = dict.fromkeys(self.events, "elastic-agent: exit 1: made up\n")
        self._crash(2, version=4)
        self.announced(5, 2, "closed", restarts=1, ended=crash_of(2), outcome="failed", members=[])
        self._leave(2, {"n1": 1, "n0": 1}, "failed")


class Arrival(MadeHistory):
    """No worker crashes: round 1 ends for a node that arrives, and only then n0's record says that it has finished."""

    def _interrupt(self) -> None:
        self.plan = replace(self.plan, max_nodes=3)
        self.ended = {"round": 1, "kind": "arrival", "because": "n2 came", "charged": ""}
        self.announced(2, 1, "over")
        self.announced(3, 1, "over", finishing=True)
        for name in self.events:
            self.event(name, "stopping", 1, "RoundSeen")
        self.announced(4, 2, "running", finishing=True, ended=self.ended)


class TooFewLeft(MadeHistory):
    """n0 finishes, then n1's worker crashes, and n1 alone is fewer than min_nodes; but n2 is about to join."""

    def _make(self) -> None:
        self._begin()
        late = Start("n2", "finish", 0.0, 1, False, 0.0)
        self.plan = replace(self.plan, max_nodes=3, starts=(*self.plan.starts, late))
        self.fact("order", "n0", round=1, pid=100, how="exit 0")
        self.event("n0", "finished", 1, "WorkersGone")
        self.announced(2, 1, "running", finishing=True)
        self.events["n2"] = []
        self.stderr = {**self.stderr, "n1": "elastic-agent: exit 1: made up\n", "n2": ""}
        self.fact("start", "n2", pid=12, nproc=1)
        self.later(5.0)
        self._crash(1, version=3)
        self.events["n0"].pop()  # it has no workers to stop
        self.announced(4, 1, "closed", finishing=True, ended=self.ended, outcome="failed", members=[])
        self._leave(1, {"n1": 1, "n0": 0}, "failed")


def crash_of(number: int) -> dict[str, Any]:
    """The end of a round in which n1's worker crashed."""
    return {"round": number, "kind": "failure", "because": "it failed", "charged": "b"}


def members() -> list[dict[str, Any]]:
    return [
        {"node": ident, "name": f"host:{10 + rank}", "group_rank": rank, "rank_offset": rank, "nproc": 1}
        for rank, ident in enumerate("ab")
    ]
