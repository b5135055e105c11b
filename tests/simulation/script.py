"""The verbs of tests/stories: a job step by step, with nothing left to chance.

    job 1:2 restarts=1        the nodes it takes, and what differs from the defaults
                              store=etcd: one that elects the coordinator
    join a b nproc=2          agents start; the first of all hosts the store
    begin a b                 as join, where how they join is not what the story shows: only who runs then is told
    wait 5                    seconds pass
    worker a/0 fails 3        with that exit code; `finishes` is exit code 0
    workers a finish
    finish                    all live workers finish, a second passes, and only how each agent exits is told
    stubborn a                its workers ignore SIGTERM
    term a | leave a | kill a | freeze a | thaw a | cut a | heal a
    stall a | resume a        its loop stands still while its threads live; it goes on
    nursery a dies
    store a dies              the process that serves the workers' store

Every verb is followed by MOMENT_S, in which its immediate consequences happen.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from elastic_agent.agent.lifecycle.restart_policy import Policy

from .world.job import Delays, Job
from .world.node import SimNode
from .world.workers import Habit
from .world.world import World

MOMENT_S = 0.1
FOLDED = {"begin": " running ", "finish": " exits "}
"""Verbs of which only the lines with this text are told."""

_TIMES = {
    "join": "join_timeout_s",
    "barrier": "exit_barrier_s",
    "grace": "grace_s",
    "lease": "lease_s",
    "store_grace": "store_grace_s",
    "last_call": "last_call_timeout_s",
    "quiet": "quiet_s",
    "settle": "settle_s",
}


class Script:
    """One story. `perform` carries out a verb and returns the lines of the trace that follow."""

    def __init__(self) -> None:
        self._world: World | None = None
        self._lines: list[str] = []

    def perform(self, line: str) -> list[str]:
        self._lines = []
        verb, *words = line.split()
        if verb == "job":
            store = "etcd" if "store=etcd" in words else ""
            job = _job([word for word in words if word != "store=etcd"])
            self._world = World(job, random.Random(0), Delays(), self._log, store=store)
        else:
            getattr(self, f"_{verb}")(*words)
            if verb != "wait":
                self.world.run(self.world.now + MOMENT_S)
        return [line for line in self._lines if FOLDED.get(verb, "") in line]

    @property
    def world(self) -> World:
        if self._world is None:
            raise ValueError("a story begins with `job`")
        return self._world

    def _log(self, now: float, what: str) -> None:
        self._lines.append(f"{now:7.1f}  {what}")

    def _node(self, name: str) -> SimNode:
        return self.world.nodes[name]

    def _wait(self, seconds: str) -> None:
        self.world.run(self.world.now + float(seconds))

    def _join(self, *words: str) -> None:
        options = dict(word.split("=") for word in words if "=" in word)
        preferred_rank = int(options["node_rank"]) if "node_rank" in options else None
        for name in (word for word in words if "=" not in word):
            self.world.join(name, int(options.get("nproc", "1")), Habit(), preferred_rank)

    def _begin(self, *words: str) -> None:
        self._join(*words)

    def _finish(self) -> None:
        for node in self.world.nodes.values():
            if node.nursery.live:
                self._workers(node.ident, "finish")
        self.world.run(self.world.now + 1.0)

    def _worker(self, which: str, what: str, code: str = "1") -> None:
        name, local_rank = which.split("/")
        nursery = self._node(name).nursery
        nursery.exit(nursery.live[int(local_rank)], 0 if what == "finishes" else int(code))

    def _workers(self, name: str, what: str) -> None:
        for local_rank in sorted(self._node(name).nursery.live):
            self._worker(f"{name}/{local_rank}", "finishes")

    def _stubborn(self, name: str) -> None:
        for worker in self._node(name).nursery.live.values():
            worker.ignores_term = True

    def _term(self, name: str) -> None:
        self._node(name).signal()

    def _leave(self, name: str) -> None:
        self._node(name).leave("drained")

    def _kill(self, name: str) -> None:
        self._node(name).kill()

    def _freeze(self, name: str) -> None:
        self._node(name).freeze()

    def _thaw(self, name: str) -> None:
        self._node(name).thaw()

    def _stall(self, name: str) -> None:
        self._node(name).stall()

    def _resume(self, name: str) -> None:
        self.world.checkers.last_fault = self.world.now
        self._node(name).go_on()

    def _cut(self, name: str) -> None:
        self._node(name).link.cut(up=True, down=True)

    def _heal(self, name: str) -> None:
        self._node(name).link.heal()

    def _store(self, name: str, what: str) -> None:
        self._node(name).nursery.lose_store()

    def _nursery(self, name: str, what: str) -> None:
        self._node(name).nursery.lose()


def _job(words: list[str]) -> Job:
    smallest, largest = words[0].split(":")
    options = dict(word.split("=") for word in words[1:])
    restarts = int(options.pop("restarts", "0"))
    static = bool(options.pop("static", ""))
    low, _, high = options.pop("backoff", "0:0").partition(":")
    policy = Policy(max_restarts=restarts, pause_min_s=float(low), pause_max_s=float(high))
    times = {_TIMES[name]: float(value) for name, value in options.items()}
    return Job(min_nodes=int(smallest), max_nodes=int(largest), restarts=policy, static=static, **times)


@dataclass
class Scene:
    """Comments and verbs, and the lines of the trace that should follow."""

    head: list[str]
    outcome: list[str]

    @property
    def verbs(self) -> list[str]:
        return [line for line in self.head if line and not line.startswith("#")]


RULE = "----"


def read(text: str) -> list[Scene]:
    """Scenes of a story: head, a rule, outcome, an empty line."""
    scenes: list[Scene] = []
    head: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        if line != RULE:
            head.append(line)
            continue
        outcome: list[str] = []
        for event in lines:
            if not event:
                break
            outcome.append(event)
        scenes.append(Scene(head, outcome))
        head = []
    if any(head):
        scenes.append(Scene(head, []))
    return scenes


def retell(scenes: list[Scene], finish: Callable[[World], None]) -> str:
    """The whole text, with what happens now as the outcome of each scene. `finish` is called at the end."""
    script = Script()
    made: list[str] = []
    for scene in scenes:
        outcome = [line for verb in scene.verbs for line in script.perform(verb)]
        made += [*scene.head, RULE, *(outcome or ["nothing"]), ""]
    finish(script.world)
    return "\n".join(made)
