"""The stream of events: each has an id that all nodes share, the event that caused it, and its stage of a recovery."""

from __future__ import annotations

from typing import Any

from elastic_agent.agent.lifecycle import events
from elastic_agent.agent.lifecycle.state import Phase
from elastic_agent.agent.report import AgentEvent
from elastic_agent.agent.steps.seen import Shown, WorkersSeen
from elastic_agent.control.ctl.causes import by_id, causes_of
from elastic_agent.control.stream import FAILED, FROM_OUTSIDE, Alarm, Checkpoint, Stage, Stream
from elastic_agent.rendezvous.driver import events as store_events
from elastic_agent.rendezvous.failures import Ending, EndKind, WorkerFailure
from elastic_agent.rendezvous.records import Round, RoundPhase

FAILURE = WorkerFailure("b:1", "b", 3, 1, 9, 1)


def event(at_s: float, phase: Phase, happened: str, round_number: int = 1, **more: Any) -> AgentEvent:
    return AgentEvent("b:1", phase, happened, round_number, happened, at_s, **more)


def played(*happened: object) -> list[tuple[str, str, object]]:
    """The ids, causes and values of these, and of what follows from them."""
    stream = Stream()
    found: list[tuple[str, str, object]] = []
    for what in happened:
        seen = stream.seen(what) if isinstance(what, WorkersSeen) else [what]
        for each in seen:
            entry = stream.entry(each, len(found) + 1, None)
            found.append((entry.id, entry.cause, each))
            for stage in stream.followed(each):
                entry = stream.entry(stage, len(found) + 1, None)
                found.append((entry.id, entry.cause, stage))
    return found


def workers(at_s: float, number: int, *shown: Shown, started: bool = True) -> WorkersSeen:
    began = dict.fromkeys(range(len(shown)), at_s) if started else {}
    return WorkersSeen(at_s, number, len(shown), 0, at_s, began, {}, shown)


def test_a_failure_leads_to_the_next_round_by_causes() -> None:
    """From the exit on one node, by the announcements of another, to the workers of the next round."""
    over = Round(5, 1, 1, RoundPhase.OVER, "rank 3 failed", unsettled=Ending(1, EndKind.FAILURE, "so", failure=FAILURE))
    found = played(
        event(1.0, Phase.JOINING, "StoreOpened", 0),
        event(2.0, Phase.WORKING, "RoundSeen", version=4),
        event(3.0, Phase.STOPPING, "WorkerExited", failure=FAILURE),
        over,
        event(4.0, Phase.JOINING, "WorkersGone"),
        Round(6, 1, 2, RoundPhase.RUNNING, "all are back"),
        event(5.0, Phase.WORKING, "RoundSeen", 2, version=6),
    )
    ids = [(each_id, cause, what.name if isinstance(what, Stage) else "") for each_id, cause, what in found]
    assert ids == [
        ("came/0", "", ""),
        ("0/2", "announced/4", ""),
        ("0/3", "0/2", "agreed"),
        ("exit/1/3", "", ""),
        ("0/5", "exit/1/3", "noticed"),
        ("announced/5", "exit/1/3", ""),
        ("0/7", "exit/1/3", ""),
        ("0/8", "0/7", "stopped"),
        ("announced/6", "announced/5", ""),
        ("0/10", "announced/6", ""),
        ("0/11", "0/10", "agreed"),
    ]


def test_stages_and_checkpoints_come_once_a_round_with_their_times() -> None:
    """Started when all are, imported when all have a Run, the first step when all have done one; then checkpoints."""
    run = Shown(began_s=3.0)
    found = [
        what
        for _, _, what in played(
            event(1.0, Phase.WORKING, "RoundSeen"),
            workers(1.5, 1, Shown(), Shown(), started=False),
            workers(2.0, 1, Shown(), Shown()),
            workers(3.0, 1, run, Shown()),
            workers(4.0, 1, run, run),
            workers(5.0, 1, Shown(began_s=3.0, useful_s=1.0), run),
            workers(6.0, 1, Shown(began_s=3.0, useful_s=1.0), Shown(began_s=3.0, repeated_s=1.0)),
            workers(7.0, 1, Shown(began_s=3.0, saved=10, saving_s=0.5), run),
            workers(8.0, 1, Shown(began_s=3.0, saved=10, saving_s=0.5), Shown(began_s=3.0, saved=10, saving_s=0.75)),
            workers(9.0, 1, Shown(began_s=3.0, saved=10, saving_s=0.5), Shown(began_s=3.0, saved=10, saving_s=0.75)),
        )
        if not isinstance(what, AgentEvent)
    ]
    assert found == [
        Stage("agreed", 1, 1.0, 0.0),
        Stage("started", 1, 2.0, 1.0),
        Stage("imported", 1, 4.0, 2.0),
        Stage("first step", 1, 6.0, 2.0),
        Checkpoint(1, 10, 8.0, 0.75),
    ]


def test_an_alarm_is_the_cause_of_the_end_that_follows_from_it() -> None:
    """A watch that finds a hang ends the round; what nobody here did has no cause."""
    found = played(
        event(1.0, Phase.WORKING, "RoundSeen"),
        Alarm(2.0, "hang", "fired", "rank 3 stands still"),
        event(3.0, Phase.STOPPING, "HangFound", failure=FAILURE),
        event(4.0, Phase.STOPPING, "SignalReceived"),
    )
    alarm = next(each_id for each_id, _, what in found if isinstance(what, Alarm))
    assert next(cause for each_id, cause, _ in found if each_id == "exit/1/3") == alarm
    assert found[-1][1] == ""


def test_an_outage_of_the_store_comes_from_outside_and_its_end_from_the_outage() -> None:
    """Also where a worker failed while the store was away."""
    found = played(
        event(1.0, Phase.WORKING, "RoundSeen", version=4),
        event(2.0, Phase.WORKING, "StoreWentAway"),
        event(3.0, Phase.STOPPING, "WorkerExited", failure=FAILURE),
        event(4.0, Phase.STOPPING, "StoreCameBack"),
    )
    of = {what.happened: (each_id, cause) for each_id, cause, what in found if isinstance(what, AgentEvent)}
    assert of["StoreWentAway"] == ("0/3", "")
    assert of["StoreCameBack"][1] == "0/3"


def test_events_that_are_named_exist() -> None:
    """A class that is renamed takes its name here along."""
    assert [
        name for name in sorted(FAILED | FROM_OUTSIDE) if not (hasattr(events, name) or hasattr(store_events, name))
    ] == []


def test_a_round_that_ends_well_shows_no_recovery() -> None:
    """Workers that have all exited 0 are not noticed as a failure."""
    found = played(
        event(1.0, Phase.WORKING, "RoundSeen"),
        event(2.0, Phase.STOPPING, "WorkerExited", finished=True),
        event(3.0, Phase.FINISHED, "WorkersGone", finished=True),
    )
    assert [what.name for _, _, what in found if isinstance(what, Stage)] == ["agreed"]


def test_a_chain_is_followed_over_the_files_of_several_nodes() -> None:
    """Why round 1 ended, from the coordinator's announcement to what happened on the other node."""
    known: list[dict[str, Any]] = [
        {"what": "alarm", "id": "b/2", "cause": "", "node": "b:1", "because": "rank 3 stands still"},
        {"what": "event", "id": "exit/1/3", "cause": "b/2", "node": "b:1", "because": "worker failed", "phase": "so"},
        {"what": "announced", "id": "announced/5", "cause": "exit/1/3", "node": "a:1", "because": "over",
         "phase": "over", "round": 1},
    ]  # fmt: skip
    assert causes_of(by_id(known), known, 1) == ["b:1: worker failed", "b:1: rank 3 stands still"]
    assert causes_of(by_id(known[1:]), known[1:], 1) == ["b:1: worker failed"]
