"""Who hosts a c10d store next, once the process of its host is dead: stories of the machine, node by node."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import get_args

import pytest

from elastic_agent.proto.frozen import replace
from elastic_agent.rendezvous.election import events
from elastic_agent.rendezvous.election.electorate import VOTERS, Electorate, elects, of_round
from elastic_agent.rendezvous.election.machine import ASKS_S, TRANSITIONS, TURN_S, IllegalEvent, step
from elastic_agent.rendezvous.election.state import HOLDS, Phase, Rules, Voter

LEASE_S = 5.0


class Peers:
    """Nodes of a round whose host is the first; messages arrive at once, except where `cut` says otherwise."""

    def __init__(self, nodes: str, *, outvotes: bool = False) -> None:
        self.now, self.outvotes = 100.0, outvotes
        self.electorate = of_round(nodes, Electorate(), ())
        self.nodes = {node: Voter(host=nodes[0]) for node in nodes[1:]}
        self.cut: set[frozenset[str]] = set()
        self.deaf: set[str] = set()
        self.elected: list[tuple[str, int]] = []
        self.said: list[str] = []
        self.ballots: list[events.Ballot] = []
        for node in self.nodes:
            self.post(node, events.HeartbeatAcknowledged(1, self.now - 0.5, 7))
            self.post(node, events.AnnouncementRead((1, 7), self.electorate.voters, self.electorate.before))

    def post(self, node: str, event: events.Event) -> None:
        done = step(self.nodes[node], event, self.now, Rules(node, LEASE_S, outvotes=self.outvotes))
        self.nodes[node] = done.state
        for effect in done.effects:
            self._carry_out(node, effect)

    def _carry_out(self, node: str, effect: events.Effect) -> None:
        if isinstance(effect, events.Ask):
            self.ballots.append(effect.ballot)
            for voter in effect.voters:
                self._send(node, voter, events.VoteAsked(effect.ballot))
        elif isinstance(effect, events.Answer):
            self.said.append(effect.because)
            answer = events.VoteAnswered(
                node, effect.ballot.epoch, effect.yes, effect.seen, effect.newest, effect.silent_s
            )
            self._send(node, effect.ballot.candidate, answer)
        elif isinstance(effect, events.Withdraw):
            for voter in effect.voters:
                self._send(node, voter, events.Withdrawn(node, effect.epoch))
        elif isinstance(effect, events.Serve):
            self.elected.append((node, effect.epoch))

    def _send(self, source: str, to: str, event: events.Event) -> None:
        if to in self.nodes and to not in self.deaf and frozenset((source, to)) not in self.cut:
            self.post(to, event)

    def dies(self, node: str, seen_by: Collection[str] | None = None) -> None:
        """Its kernel closes its connections."""
        self.nodes.pop(node, None)
        for other in list(self.nodes):
            if seen_by is None or other in seen_by:
                self.post(other, events.ProcessDied(node))

    def wait(self, seconds: float) -> None:
        """Deadlines pass, in small steps."""
        until = self.now + seconds
        while self.now < until:
            self.now += TURN_S / 3
            for node in list(self.nodes):
                self.post(node, events.DeadlineReached())

    def phase(self, node: str) -> Phase:
        return self.nodes[node].phase


def test_the_next_of_three_hosts_once_the_other_has_promised_its_vote() -> None:
    peers = Peers("abc")
    peers.dies("a")
    assert peers.elected == []
    peers.wait(2 * TURN_S)
    assert peers.elected == [("b", 2)]
    assert (peers.phase("b"), peers.phase("c")) == (Phase.SERVING, Phase.PROMISED)
    assert peers.said == ["promised to let b host the store (epoch 2)"]
    peers.post("c", events.HostFound("b", 2))
    assert peers.nodes["c"].because == "b hosts the store now (epoch 2)"
    peers.wait(60)
    assert peers.elected == [("b", 2)]


def test_of_two_nodes_the_survivor_goes_on_where_the_other_is_known_to_be_dead() -> None:
    peers = Peers("ab")
    peers.dies("a")
    peers.wait(2 * TURN_S)
    assert peers.elected == [("b", 2)]


def test_a_host_that_only_does_not_answer_is_replaced_by_nobody() -> None:
    """It may be cut off from all of them, and go on elsewhere."""
    for nodes in ("ab", "abc", "abcde"):
        peers = Peers(nodes)
        peers.wait(60)
        assert peers.elected == []


def test_who_has_not_seen_that_the_host_is_dead_promises_nothing_yet() -> None:
    peers = Peers("abc")
    peers.dies("a", seen_by="b")
    peers.wait(0.6)
    assert peers.elected == []
    assert peers.said[0] == "a hosts the store (epoch 1) and is not known here to be dead"
    peers.post("c", events.ProcessDied("a"))
    peers.wait(5 * TURN_S)
    assert peers.elected == [("c", 3)]


def test_a_minority_elects_nobody_and_a_majority_elsewhere_does() -> None:
    """Of b to f, the living voters, b and c reach each other only."""
    peers = Peers("abcdef")
    peers.cut = {frozenset((x, y)) for x in "bc" for y in "def"}
    peers.dies("a")
    peers.wait(3)
    ((node, _),) = peers.elected
    assert node in "def"
    assert peers.nodes["b"].phase is not Phase.SERVING


def test_half_of_the_voters_elect_nobody() -> None:
    peers = Peers("abcde")
    peers.cut = {frozenset((x, y)) for x in "bc" for y in "de"}
    peers.dies("a")
    peers.wait(60)
    assert peers.elected == []


def test_voters_that_are_dead_too_do_not_count_where_that_is_known() -> None:
    peers = Peers("abcd")
    for dead in "abc":
        peers.dies(dead)
    peers.wait(ASKS_S + 4 * TURN_S)
    assert [node for node, _ in peers.elected] == ["d"]


def test_a_question_names_only_the_dead_that_could_host_or_vote() -> None:
    """Hundreds of nodes may have died in the time of a job, and the question must fit into one line."""
    peers = Peers("abcd")
    for number in range(1000):
        peers.dies(f"spare{number}")
    peers.dies("a")
    peers.wait(2 * TURN_S)
    assert [ballot.dead for ballot in peers.ballots] == [{"a"}]
    assert peers.elected == [("b", 2)]


def test_a_promise_lasts_until_its_candidate_withdraws() -> None:
    peers = Peers("abcde")
    peers.dies("a")
    ballot = events.Ballot(2, "b", (1, 7), frozenset("a"))
    peers.post("d", events.VoteAsked(ballot))
    peers.post("d", events.VoteAsked(replace(ballot, epoch=3, candidate="c")))
    assert peers.said[-1] == "the vote is promised to b (epoch 2)"
    peers.post("d", events.Withdrawn("b", 2))
    peers.post("d", events.VoteAsked(replace(ballot, epoch=2, candidate="c")))
    assert peers.said[-1] == "epoch 2 is over; epoch 2 is known here"
    peers.post("d", events.VoteAsked(replace(ballot, epoch=3, candidate="c")))
    assert peers.said[-1] == "promised to let c host the store (epoch 3)"


def test_two_candidates_that_refuse_each_other_do_not_ask_again_at_once() -> None:
    """Else they would ask each other for ever, with greater and greater epochs."""
    peers = Peers("abcde")
    peers.cut = {frozenset((x, y)) for x in "bc" for y in "de"}
    peers.cut.discard(frozenset("bd"))
    peers.deaf = {"c", "e"}
    peers.dies("a")
    peers.wait(10)
    assert peers.elected == []
    assert 10 < len(peers.said) < 60


def test_a_promise_whose_answer_got_lost_is_repeated() -> None:
    peers = Peers("abc")
    peers.dies("a", seen_by="c")
    ballot = events.Ballot(2, "b", (1, 7), frozenset("a"))
    for _ in range(2):
        peers.post("c", events.VoteAsked(ballot))
    assert peers.said == ["promised to let b host the store (epoch 2)"] * 2


def test_the_next_host_dies_during_its_own_takeover() -> None:
    """c, which had promised it its vote, sees that it is dead, and goes on with who is left."""
    peers = Peers("abcd")
    peers.dies("a")
    peers.wait(2 * TURN_S)
    peers.dies("b")
    peers.wait(ASKS_S + 4 * TURN_S)
    assert peers.elected == [("b", 2), ("c", 3)]


def test_a_candidate_gives_way_to_who_has_read_more() -> None:
    """Only c has read announcement 8: what the host announced to c is kept."""
    peers = Peers("abc")
    peers.post("c", events.AnnouncementRead((1, 8), peers.electorate.voters, ()))
    peers.dies("a")
    peers.wait(4 * TURN_S)
    assert "announcement 8 was read here, and the candidate knows only of 7" in peers.said
    peers.wait(VOTERS * TURN_S)
    assert peers.elected == [("c", 3)]


def test_what_is_read_after_the_death_still_counts() -> None:
    peers = Peers("abc")
    peers.dies("a")
    peers.post("c", events.AnnouncementRead((1, 8), ("a", "c"), ("a", "c")))
    peers.wait(2 * TURN_S + VOTERS * TURN_S)
    assert [node for node, _ in peers.elected] == ["c"]


def test_a_node_that_the_host_may_have_lost_neither_votes_nor_asks() -> None:
    """A round may have begun without it, with others who elect a host of their own."""
    for nodes in ("ab", "abc"):
        peers = Peers(nodes)
        peers.now += HOLDS * LEASE_S
        peers.dies("a")
        peers.wait(5)
        assert peers.elected == []
        assert "for 0.8 of a lease" in peers.nodes["b"].because


def test_a_node_that_has_not_read_the_newest_announcement_does_not_ask() -> None:
    """It was announced before its last heartbeat was acknowledged: a round may have begun by it."""
    peers = Peers("ab")
    peers.post("b", events.HeartbeatAcknowledged(1, peers.now, 8))
    peers.dies("a")
    peers.wait(5)
    assert peers.elected == []


def test_a_job_whose_first_round_has_not_begun_has_no_voters() -> None:
    peers = Peers("ab")
    peers.nodes["b"] = replace(peers.nodes["b"], electorate=Electorate())
    peers.dies("a")
    peers.wait(5)
    assert peers.elected == []
    assert "no round has voters" in peers.nodes["b"].because


def test_a_candidate_that_finds_another_host_follows_it() -> None:
    peers = Peers("abcde")
    peers.cut = {frozenset(("b", y)) for y in "cde"}
    peers.dies("a")
    peers.wait(1.5 * TURN_S)
    assert peers.phase("b") is Phase.ASKING
    peers.post("b", events.HostFound("c", 3))
    peers.post("b", events.VoteAnswered("d", 2, yes=True))
    assert peers.phase("b") is Phase.FOLLOWING


# -- who may vote -----------------------------------------------------------------------------------------------------


def test_the_first_members_of_a_round_are_its_voters() -> None:
    many = [f"n{number}" for number in range(1000)]
    assert of_round(many, Electorate(), ()) == Electorate(tuple(many[:VOTERS]))


def test_newcomers_elect_nobody_without_those_who_were_there_before() -> None:
    """a and b may not have read yet that the round with c, d, e and f has begun, and would elect a host by the last."""
    electorate = of_round("habcdef", Electorate(("h", "a", "b")), ())
    assert electorate.before == ("h", "a", "b")
    assert not elects(electorate, "cdef", "h", "h")
    assert elects(electorate, "abcd", "h", "h")
    assert elects(Electorate(("h", "a", "b")), "ab", "h", "h")


def test_those_that_are_left_and_do_not_reach_one_elect_nobody_where_others_died() -> None:
    """a, with the votes of b, c and d, may host: that these died makes e and f no majority. All that are left elect."""
    electorate = Electorate(tuple("habcdef"))
    assert not elects(electorate, "ef", "hbcd", "h")
    assert elects(electorate, "aef", "hbcd", "h")
    assert elects(electorate, "abcd", "h", "h")


def test_voters_that_said_goodbye_or_were_lost_are_asked_no_more() -> None:
    electorate = of_round("ha", Electorate(("h", "a", "b")), ("b",))
    assert electorate == Electorate(("h", "a"), ("h", "a"))
    assert elects(electorate, "a", "h", "h")


def test_no_host_is_elected_behind_a_voter_that_lives_without_a_place() -> None:
    assert of_round("hcd", Electorate(("h", "a")), ()) == Electorate()


def test_a_newcomer_alone_hosts_next_where_all_who_were_there_before_are_dead_or_lost() -> None:
    """Of two nodes one was lost and replaced, then the host dies."""
    electorate = of_round("hb", Electorate(("h", "a")), ("a",))
    assert electorate == Electorate(("h", "b"), ("h",))
    assert elects(electorate, "b", "h", "h")
    assert not elects(electorate, "", "h", "h")


def test_half_of_a_group_is_no_majority() -> None:
    assert not elects(Electorate(("h", "b", "c", "d", "e")), "bc", "h", "h")
    assert elects(Electorate(("h", "b", "c", "d", "e")), "bcd", "h", "h")
    assert not elects(Electorate(("h", "a"), ("a", "b", "c", "d")), "ab", "h", "h")


# -- a host that is silent --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", ["abc", "abcd", "abcde"])
def test_a_host_that_is_silent_for_a_lease_is_replaced(nodes: str) -> None:
    peers = Peers(nodes, outvotes=True)
    peers.wait(LEASE_S - 0.6)
    assert {peers.phase(node) for node in nodes[1:]} == {Phase.FOLLOWING}
    peers.wait(1.0)
    assert peers.elected == [("b", 2)]
    assert (peers.nodes["b"].outvoted, peers.nodes["b"].dead) == (frozenset("a"), frozenset())


def test_half_of_the_voters_replace_no_silent_host() -> None:
    """The host and the other half may go on."""
    for nodes, reached in (("ab", "b"), ("abcd", "bc"), ("abcde", "bc")):
        peers = Peers(nodes, outvotes=True)
        peers.cut = {frozenset((x, y)) for x in reached for y in set(nodes) - set(reached)}
        peers.deaf = set(nodes) - set(reached)
        peers.wait(60)
        assert peers.elected == []


def test_a_host_that_answers_again_is_followed_unless_another_was_promised_the_vote() -> None:
    peers = Peers("abc", outvotes=True)
    peers.cut = {frozenset("bc")}
    peers.wait(LEASE_S)
    for node in "bc":
        assert peers.nodes[node].silent
        peers.post(node, events.HeartbeatAcknowledged(1, peers.now, 7))
        assert (peers.phase(node), peers.nodes[node].because) == (
            Phase.FOLLOWING, "a, which hosts the store, answers again"
        )  # fmt: skip
    peers.cut.clear()
    peers.wait(LEASE_S + 0.5)
    assert peers.elected == [("b", peers.nodes["b"].epoch)]
    peers.post("c", events.HeartbeatAcknowledged(1, peers.now, 7))
    assert peers.phase("c") is Phase.PROMISED


def test_a_voter_gives_up_a_silent_host_as_it_is_asked_though_its_own_lease_is_not_over() -> None:
    """Heartbeats are not sent at the same time: else each candidate would have to ask twice."""
    peers = Peers("abc", outvotes=True)
    peers.post("c", events.HeartbeatAcknowledged(1, peers.now + 0.4, 7))
    peers.wait(LEASE_S - 0.1)
    assert peers.elected == [("b", 2)]


# -- the table --------------------------------------------------------------------------------------------------------


def test_every_event_is_handled_in_every_phase() -> None:
    """Messages may arrive late, in any order, or twice."""
    assert set(TRANSITIONS) == {(phase, event) for phase in Phase for event in get_args(events.Event)}


def test_no_event_changes_the_state_that_it_was_given() -> None:
    some: dict[type, events.Event] = {
        events.AnnouncementRead: events.AnnouncementRead((1, 9), ("a", "b"), ()),
        events.HeartbeatAcknowledged: events.HeartbeatAcknowledged(1, 1.0, 9),
        events.ProcessDied: events.ProcessDied("a"),
        events.VoteAsked: events.VoteAsked(events.Ballot(9, "c", (1, 9), frozenset("a"))),
        events.VoteAnswered: events.VoteAnswered("c", 2, yes=True),
        events.Withdrawn: events.Withdrawn("c", 2),
        events.HostFound: events.HostFound("c", 9),
        events.DeadlineReached: events.DeadlineReached(),
    }
    assert set(some) == set(get_args(events.Event))
    for phase, event in TRANSITIONS:
        state = Voter("a", phase=phase, electorate=Electorate(("a", "b", "c")), promised=(2, "c"))
        before = dataclasses.asdict(state)
        step(state, some[event], 1.0, Rules("b", LEASE_S))
        assert dataclasses.asdict(state) == before


def test_an_unknown_event_is_illegal() -> None:
    with pytest.raises(IllegalEvent, match="a node that is following got 'no event'"):
        step(Voter("a"), "no event", 0.0, Rules("b", LEASE_S))  # type: ignore[arg-type]
