"""Who may elect the next host of a store, as announced; and what that host knows of members without a record."""

from __future__ import annotations

from dataclasses import replace

from elastic_agent.rendezvous.codec.records import decode_node, decode_round, encode_node, encode_round
from elastic_agent.rendezvous.coordinator import fencing, machine
from elastic_agent.rendezvous.coordinator.events import (
    BeatsSeen,
    DeadlineReached,
    Elected,
    HandOver,
    MoveFence,
    ProcessesDied,
    WakeAt,
)
from elastic_agent.rendezvous.coordinator.fencing import RE_FORMS_S
from elastic_agent.rendezvous.coordinator.state import Rendezvous, Rules
from elastic_agent.rendezvous.records import NodeRecord, NodeState, Round, RoundPhase, Witness
from support.builders import record
from support.rigs.coordinators import LEASE_S, Coordinator, Store

RULES = {"succeeds": True, "min_nodes": 1, "last_call_timeout_s": 60.0, "quiet_s": 60.0}


def node(
    name: str, seq: int = 1, state: NodeState = NodeState.WAITING, number: int = 0, **fields: object
) -> NodeRecord:
    made = record(name, seq, state, number, vote_port=7, store=f"{name}:29400")
    return replace(made, **fields)  # type: ignore[arg-type]


def running(*nodes: NodeRecord, **rules: float) -> Coordinator:
    """Round 1 of these nodes, on node a."""
    made = Coordinator(Store(), "a", 1, **{**RULES, "max_nodes": len(nodes), **rules})
    made.publish(*nodes)
    assert made.state.phase is RoundPhase.RUNNING
    working = (replace(each, seq=2, state=NodeState.WORKING, round=1) for each in nodes)
    return made.publish(*working)


def announced(coordinator: Coordinator) -> Round:
    assert coordinator.store.announced is not None
    return coordinator.store.announced


def test_members_that_may_host_are_the_voters() -> None:
    """By group rank, with where they vote and could host; and who hosts now is named."""
    seen = announced(running(node("a"), node("b"), node("c", store="")))
    assert seen.voters == (Witness("a", "a.example", 7, "a:29400"), Witness("b", "b.example", 7, "b:29400"))
    assert (seen.before, seen.host) == ((), seen.voters[0])


def test_nothing_of_it_is_announced_where_one_node_hosts() -> None:
    seen = announced(running(node("a"), node("b"), succeeds=False))
    assert (seen.voters, seen.host, seen.finished) == ((), None, ())


def test_voters_of_the_round_before_are_named_with_the_next_one() -> None:
    """b is lost for want of heartbeats, so it may not vote by what it has read, and the others may."""
    made = running(node("a"), node("b"), node("c"))
    made.publish(node("b", 3, NodeState.LEAVING, 1))
    made.publish(*(node(name, 3, NodeState.WAITING, 1) for name in ("a", "c")), node("b", 4, NodeState.ENDED, 1))
    seen = announced(made)
    assert (seen.number, seen.phase) == (2, RoundPhase.RUNNING)
    assert ([voter.node for voter in seen.voters], seen.before) == (["a", "c"], ("a", "c"))


def test_a_voter_that_lives_without_a_place_leaves_the_round_without_voters() -> None:
    """It sends heartbeats and reports nothing, so it is lost; what it may elect by could differ from what others do."""
    made = running(node("a"), node("b"), node("c"))
    made.publish(node("c", 3, NodeState.WAITING, 1))
    made.publish(node("a", 3, NodeState.WAITING, 1))
    count = 0
    while made.state.number == 1 and made.now < 200.0:
        made.now, count = made.now + 0.5, count + 1
        if made.state.readings.pending:
            made.step(BeatsSeen({"b": count, "c": count}))
        made.step(DeadlineReached())
    seen = announced(made)
    assert seen.number == 2
    assert (seen.member("b"), seen.voters) == (None, ())


def test_a_host_that_had_finished_is_no_loss_to_its_successor() -> None:
    """Its record is gone with it, and the announcement says that it had finished."""
    made = running(node("a"), node("b"), node("c"))
    made.publish(node("a", 3, NodeState.FINISHED, 1, finished=True))
    assert announced(made).finished == ("a",)
    del made.store.records["a"]
    second = made.successor("b", **{**RULES, "max_nodes": 3})
    assert (second.state.phase, second.state.finishing) == (RoundPhase.RUNNING, True)
    second.publish(*(node(name, 9, NodeState.FINISHED, 1, finished=True) for name in ("b", "c")))
    assert announced(second).phase is RoundPhase.CLOSED


def test_a_host_that_had_not_finished_is_lost() -> None:
    made = running(node("a"), node("b"), node("c"))
    del made.store.records["a"]
    second = made.successor("b", **{**RULES, "max_nodes": 3})
    assert second.state.phase is RoundPhase.OVER
    assert second.state.because == "a was lost: it has not come to the new host of the store"


def test_a_host_that_more_than_half_of_the_voters_do_not_reach_begins_no_round() -> None:
    """They may have elected another; with half of them it goes on, as the other half cannot."""
    for lost, number in ("b", 2), ("bc", 1):
        made = running(node("a"), node("b"), node("c"), fences=False, outvotes=True)
        beating = {name: 1 for name in "bc" if name not in lost}
        while made.now < 30.0:
            made.now += 0.5
            beating = {name: count + 1 for name, count in beating.items()}
            if made.state.readings.pending:
                made.step(BeatsSeen({**dict.fromkeys(lost, 0), **beating}))
            made.step(DeadlineReached())
            if made.state.phase is RoundPhase.OVER:
                made.publish(*(node(name, 3, NodeState.WAITING, 1) for name in "abc" if name not in lost))
        begun = made.state.phase is RoundPhase.RUNNING
        assert (made.state.number if begun else 1) == number
        assert begun is ("more than half of those that may vote do not reach" not in announced(made).because)


def test_a_successor_waits_for_no_workers_of_a_host_that_is_dead_and_a_moment_for_a_silent_one() -> None:
    """On hosts of their own, where nobody sees that its processes have ended."""
    a, nobody = frozenset("a"), frozenset[str]()
    for ended, outvoted in (a, nobody), (nobody, a):
        made = running(node("a"), node("b"), node("c"))
        last, records = announced(made), tuple(node(name, 3, NodeState.WAITING, 1) for name in "bc")
        rules = Rules("b", **{**RULES, "max_nodes": 3, "fences": True, "hosted": True})  # type: ignore[arg-type]
        elected = Elected(2, last, records, ended=ended, outvoted=outvoted, silent_since=-5.0)
        state = machine.step(Rendezvous(), elected, 0.0, rules).state
        assert (state.number, state.phase) == ((2, RoundPhase.RUNNING) if ended else (1, RoundPhase.OVER))
        assert fencing.deadlines(state, rules) == [fencing.OUTVOTED * LEASE_S - 5.0] * len(outvoted)


def beats(made: Coordinator, count: int, *names: str) -> Coordinator:
    """A heartbeat of each of these nodes, and none of the others, as it is read half a second behind the last."""
    made.now += 0.5
    made.step(DeadlineReached())
    if made.state.readings.pending:
        made.step(BeatsSeen({name: count if name in names else 0 for name in made.state.nodes}))
    return made


def test_a_host_that_stood_still_begins_a_round_once_half_of_the_voters_reach_it_again() -> None:
    """Heartbeats that waited while it was frozen say nothing: who sent them may have elected another since."""
    made = running(node("a"), node("b"), node("c"), fences=False, outvotes=True)
    for count in (1, 2, 3):
        beats(made, count, "b", "c")
    made.publish(node("b", 3, NodeState.WAITING, 1))
    made.publish(node("c", 3, NodeState.WAITING, 1))
    made.now += 6.0
    beats(made, 4, "b", "c")
    made.publish(node("a", 3, NodeState.WAITING, 1))
    assert made.state.phase is RoundPhase.GATHERING
    beats(made, 4)
    assert made.state.phase is RoundPhase.GATHERING
    beats(made, 5, "c")
    assert (made.state.phase, made.state.number) == (RoundPhase.RUNNING, 2)


def test_a_voter_that_was_silent_before_it_died_may_have_elected_another_host() -> None:
    """One that died behind a heartbeat has not, so two that are killed at once leave the third to go on."""
    for silent_s, begun in (0.0, True), (4.0, False):
        made = running(node("a"), node("b"), node("c"), fences=False, outvotes=True)
        for count in (1, 2, 3):
            beats(made, count, "b", "c")
        for _ in range(int(silent_s / 0.5)):
            beats(made, 3)
        made.step(ProcessesDied(frozenset("bc")))
        for _ in range(20):
            beats(made, 3)
        made.publish(node("a", 3, NodeState.WAITING, 1))
        beats(made, 3)
        assert (made.state.number == 2 and made.state.phase is RoundPhase.RUNNING) is begun


def test_workers_of_a_host_run_behind_the_last_heartbeat_by_which_it_reached_half_of_the_voters() -> None:
    """Of three, itself and one other. Where no majority could replace it, they have no end."""
    made = running(node("a"), node("b"), node("c"), outvotes=True)
    assert made.state.fence_until == fencing.HOST_HOLDS * LEASE_S
    for count in (1, 2, 3, 4, 5):
        beats(made, count, "b", "c")
    # The one before was acknowledged, and the reading before that did not have it.
    read_at = made.now - 1.0
    assert made.state.fence_until == read_at + fencing.HOST_HOLDS * LEASE_S
    beats(made, 6, "c")
    assert made.state.fence_until == read_at + 0.5 + fencing.HOST_HOLDS * LEASE_S
    assert MoveFence(made.state.fence_until) in made.effects
    beats(made, 6)
    assert made.state.fence_until == read_at + 0.5 + fencing.HOST_HOLDS * LEASE_S
    pair = running(node("a"), node("b"), outvotes=True)
    for count in (1, 2, 3):
        assert beats(pair, count).state.fence_until == float("inf")


def hands_over(made: Coordinator) -> bool:
    return any(isinstance(effect, HandOver) for effect in made.effects)


def test_a_host_that_has_ended_hands_over_once_a_round_begins_without_it() -> None:
    """Behind what it announced last, which its voters read first."""
    made = running(node("a"), node("b"), node("c"))
    made.publish(node("a", 3, NodeState.LEAVING, 1), node("a", 4, NodeState.ENDED, 1))
    assert (made.state.phase, hands_over(made)) == (RoundPhase.OVER, False)
    made.publish(*(node(name, 3, NodeState.WAITING, 1) for name in ("b", "c")))
    assert (made.state.phase, made.effects[-1]) == (RoundPhase.RUNNING, HandOver(announced(made).version))


def test_a_host_that_has_ended_serves_until_newcomers_know_of_their_round() -> None:
    """Before they read of the first round b, c and e have no connection to it, and would look for the store in vain;
    so would d, which comes to the second."""
    made = Coordinator(Store(), "a", 1, **{**RULES, "min_nodes": 3, "max_nodes": 3})
    made.publish(node("a"), node("b")).publish(node("a", 2, NodeState.ENDED))
    assert (made.state.phase, hands_over(made)) == (RoundPhase.GATHERING, False)
    made.publish(node("c"), node("e"))
    assert (made.state.phase, hands_over(made)) == (RoundPhase.RUNNING, False)
    made.publish(*(node(name, 2, NodeState.WORKING, 1) for name in "bc"))
    assert not hands_over(made)
    made.publish(node("e", 2, NodeState.WORKING, 1))
    assert hands_over(made)
    made = running(node("a"), node("b"))
    made.publish(node("a", 3, NodeState.LEAVING, 1), node("a", 4, NodeState.ENDED, 1), node("d"))
    made.publish(node("b", 3, NodeState.WAITING, 1))
    assert (made.state.phase, hands_over(made)) == (RoundPhase.RUNNING, False)
    made.publish(node("d", 2, NodeState.WORKING, 2))
    assert hands_over(made)


def test_a_host_waits_for_the_next_round_for_a_moment_only() -> None:
    """Workers elsewhere may take long to stop, and this host may have little time."""
    made = running(node("a"), node("b"), node("c"))
    made.publish(node("a", 3, NodeState.LEAVING, 1), node("a", 4, NodeState.ENDED, 1))
    made.step(BeatsSeen({"b": 1, "c": 1}))
    woken = [effect.when for effect in made.effects if isinstance(effect, WakeAt)]
    assert woken
    assert woken[0] <= made.state.since + RE_FORMS_S
    made.now = made.state.since + RE_FORMS_S
    made.step(DeadlineReached())
    assert (made.state.phase, hands_over(made)) == (RoundPhase.OVER, True)


def test_a_host_serves_on_while_too_few_stay_to_elect_another() -> None:
    """a and b leave together: c alone is no majority while b may vote otherwise. It is, once a round runs without b."""
    made = running(node("a"), node("b"), node("c"))
    made.publish(*(node(name, 3, NodeState.LEAVING, 1) for name in ("a", "b")), node("a", 4, NodeState.ENDED, 1))
    made.now = made.state.since + 2 * RE_FORMS_S
    made.step(DeadlineReached())
    assert not hands_over(made)
    made.publish(node("b", 4, NodeState.ENDED, 1))
    assert not hands_over(made)
    made.publish(node("c", 3, NodeState.WAITING, 1))
    assert (made.state.phase, hands_over(made)) == (RoundPhase.RUNNING, True)


def test_a_host_serves_on_where_no_other_may_host_and_to_the_end_of_a_job_that_is_over() -> None:
    alone = running(node("a"), node("b", store=""))
    alone.publish(node("a", 3, NodeState.LEAVING, 1), node("a", 4, NodeState.ENDED, 1))
    alone.publish(node("b", 3, NodeState.WAITING, 1, store=""))
    assert (alone.state.phase, hands_over(alone)) == (RoundPhase.RUNNING, False)
    over = running(node("a"), node("b"))
    over.publish(*(node(name, 3, NodeState.FINISHED, 1, finished=True) for name in ("a", "b")))
    over.publish(node("a", 4, NodeState.ENDED, 1, finished=True))
    assert (over.state.phase, hands_over(over)) == (RoundPhase.CLOSED, False)
    one = running(node("a"), node("b"), succeeds=False)
    one.publish(node("a", 3, NodeState.LEAVING, 1), node("a", 4, NodeState.ENDED, 1))
    one.publish(node("b", 3, NodeState.WAITING, 1))
    assert (one.state.phase, hands_over(one)) == (RoundPhase.RUNNING, False)


def test_the_codec_keeps_all_of_it() -> None:
    made = running(node("a"), node("b"), node("c"), lease_s=LEASE_S)
    made.publish(node("a", 3, NodeState.FINISHED, 1, finished=True))
    seen = replace(announced(made), before=("a", "c"))
    assert decode_round(encode_round(seen)) == seen
    assert decode_node(encode_node(node("a"))) == node("a")
