"""One node's part in the election of the next host of a c10d store. A pure machine: docs/adr/0049.

    step(state, event, now, rules) -> Step(state, because, effects)

A node elects once it knows that the process of the host is dead, or that the host has left; where three nodes and more
may be in the job, once the host was silent for a lease. Voters give way to each other in the order of their group
ranks: each waits its turn, and promises its vote to the first candidate that asks and has read no less than it has. A
promise lasts until its candidate withdraws or is dead, so at most one node is ever elected for an epoch, and none while
another one that was elected lives. Time is an argument: seconds on a clock of this host that counts suspension, as
votes lapse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...proto.frozen import dataclass, replace
from .electorate import VOTERS, Electorate, asked
from .events import (
    AnnouncementRead,
    Answer,
    Ask,
    Ballot,
    DeadlineReached,
    Effect,
    Event,
    HeartbeatAcknowledged,
    HostFound,
    ProcessDied,
    Serve,
    VoteAnswered,
    VoteAsked,
    WakeAt,
    Withdraw,
    Withdrawn,
)
from .state import HOLDS, SILENT_HOLDS, Phase, Rules, Voter, gone, has_given_up, may_vote_until, wins

TURN_S = 0.15
"""From the turn of one voter to that of the next: some round trips between their threads."""
ASKS_S = 0.5
"""How long a candidate waits for a majority before it withdraws."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one event led to."""

    state: Voter
    because: str
    effects: tuple[Effect, ...] = ()


class IllegalEvent(RuntimeError):
    """An event that cannot happen in this phase. Our bug; nothing changed."""


Move = tuple[Voter, tuple[Effect, ...]]


def step(state: Voter, event: Event, now: float, rules: Rules) -> Step:
    """Apply one event. Raises IllegalEvent, leaving the caller's state as it was."""
    move = TRANSITIONS.get((state.phase, type(event)))
    if move is None:
        raise IllegalEvent(f"a node that is {state.phase.value} got {event!r}")
    after, effects = move(state, event, now, rules)
    return Step(after, after.because, effects)


# -- while a host is followed -----------------------------------------------------------------------------------------


def _read(state: Voter, event: AnnouncementRead, now: float, rules: Rules) -> Move:
    if event.newest <= state.newest or event.newest[0] > state.epoch:
        return state, ()
    return replace(state, newest=event.newest, electorate=Electorate(event.voters, event.before)), ()


def _read_late(state: Voter, event: AnnouncementRead, now: float, rules: Rules) -> Move:
    """What the host announced before it died."""
    after, _ = _read(state, event, now, rules)
    return (state, ()) if after is state else _orphaned(after, state.because, now, rules)


def _acknowledged(state: Voter, event: HeartbeatAcknowledged, now: float, rules: Rules) -> Move:
    if event.epoch != state.epoch or event.sent_at < state.acknowledged[0]:
        return state, ()
    wakes = (WakeAt(event.sent_at + rules.lease_s),) if rules.outvotes or rules.survivor_goes else ()
    return replace(state, acknowledged=(event.sent_at, (event.epoch, event.version))), wakes


def _silent(state: Voter, event: DeadlineReached, now: float, rules: Rules) -> Move:
    """The host may be silent for a lease."""
    sent_at, newest = state.acknowledged
    if newest > state.newest or now < sent_at + rules.lease_s:
        return state, ()
    because = f"the host was silent for {rules.lease_s:g} s"
    pair = {*state.electorate.voters, *state.electorate.before} == {state.host, rules.node}
    if not (pair and rules.survivor_goes):
        return _orphaned(replace(state, silent=True), because, now, rules) if rules.outvotes else (state, ())
    because += " and survivor=go was given"
    epoch = max(state.epoch, state.promised[0]) + 1
    promised = replace(state, silent=True, promised=(epoch, rules.node), votes=frozenset({rules.node}))
    state, effects = _elected(replace(promised, heard_at=sent_at))
    return replace(state, because=f"{because}: hosting the store (epoch {epoch})"), effects


def _heard_again(state: Voter, event: HeartbeatAcknowledged, now: float, rules: Rules) -> Move:
    """The host was only silent, and nobody has replaced it as far as is known here."""
    if not state.silent or event.epoch != state.epoch or now >= event.sent_at + rules.lease_s:
        return state, ()
    given_up = (_withdrawal(state, rules),) if state.phase is Phase.ASKING else ()
    if given_up:
        state = replace(state, promised=(state.promised[0], ""), votes=frozenset())
    because = f"{state.host}, which hosts the store, answers again"
    state = replace(state, phase=Phase.FOLLOWING, silent=False, because=because)
    state, wakes = _acknowledged(state, event, now, rules)
    return state, (*given_up, *wakes)


def _died(state: Voter, event: ProcessDied, now: float, rules: Rules) -> Move:
    state = replace(state, dead=state.dead | {event.node})
    lost = state.promised[1] if state.phase is Phase.PROMISED else state.host
    if event.node != lost:
        return state, ()
    because = f"{event.node}, which hosted the store, has left" if event.left else ""
    because = because or f"the agent of {event.node}, which hosted the store, is dead"
    return _orphaned(state, because, now, rules)


def _found(state: Voter, event: HostFound, now: float, rules: Rules) -> Move:
    if event.epoch <= state.epoch or event.host in state.dead:
        return state, ()
    because = f"{event.host} hosts the store now (epoch {event.epoch})"
    found = replace(state, phase=Phase.FOLLOWING, host=event.host, epoch=event.epoch, because=because, silent=False)
    if has_given_up(state):  # the promise was counted as a heartbeat to a silent host, which holds for longer
        sent_at, newest = state.acknowledged
        return replace(found, acknowledged=(sent_at + (SILENT_HOLDS - HOLDS) * rules.lease_s, newest)), ()
    return found, ()


def _found_while_asking(state: Voter, event: HostFound, now: float, rules: Rules) -> Move:
    found, _ = _found(state, event, now, rules)
    return (state, ()) if found is state else (found, (_withdrawal(state, rules),))


# -- the own candidacy ------------------------------------------------------------------------------------------------


def _orphaned(state: Voter, because: str, now: float, rules: Rules, after: int = 0) -> Move:
    """Wait for the turn of this node; `after`: turns of the others that come first once more."""
    living = [node for node in state.electorate.voters if node not in gone(state)]
    if not living:
        because += "; no round has voters who could elect another host"
        return replace(state, phase=Phase.ORPHANED, because=because, turn_at=float("inf")), ()
    if rules.node not in living:
        because += f"; {', '.join(living)} elect another host"
        return replace(state, phase=Phase.ORPHANED, because=because, turn_at=float("inf")), ()
    turn_at = now + (living.index(rules.node) + 1 + after) * TURN_S
    return replace(state, phase=Phase.ORPHANED, because=because, turn_at=turn_at), (WakeAt(turn_at),)


def _turn(state: Voter, event: DeadlineReached, now: float, rules: Rules) -> Move:
    if now < state.turn_at:
        return state, ()
    if now >= may_vote_until(state, rules):
        because = (
            f"{state.host}, which hosted the store, is gone; the store had acknowledged no heartbeat of this node for "
            f"{HOLDS:g} of a lease, so a newer round may have begun without it, and it elects nobody"
        )
        return replace(state, turn_at=float("inf"), because=because), ()
    epoch = max(state.epoch, state.promised[0], state.seen) + 1
    own = frozenset({rules.node})
    state = replace(state, promised=(epoch, rules.node), votes=own, heard_at=state.acknowledged[0])
    if wins(state):
        return _elected(state)
    concerned = {*state.electorate.voters, *state.electorate.before, state.host}
    ballot = Ballot(epoch, rules.node, state.newest, state.dead & concerned)
    voters = asked(state.electorate, rules.node, gone(state))
    until = now + ASKS_S
    because = f"asking {', '.join(voters)} to let this node host the store (epoch {epoch})"
    state = replace(state, phase=Phase.ASKING, turn_at=until, because=because)
    return state, (Ask(voters, ballot), WakeAt(until))


def _counted(state: Voter, event: VoteAnswered, now: float, rules: Rules) -> Move:
    if event.epoch != state.promised[0]:
        return state, ()
    if not event.yes:
        state = replace(state, seen=max(state.seen, event.seen))
        if event.newest <= state.newest:
            return _ask_again(state, now, rules) if event.seen >= state.promised[0] else (state, ())
        return _give_up(state, f"{event.voter} has read a newer announcement", now, rules, after=VOTERS)
    heard_at = max(state.heard_at, now - event.silent_s)
    state = replace(state, votes=state.votes | {event.voter}, heard_at=heard_at)
    return _elected(state) if wins(state) else (state, ())


def _ask_again(state: Voter, now: float, rules: Rules) -> Move:
    """With an epoch that no voter has promised to anybody yet, as far as is known."""
    withdrawal = _withdrawal(state, rules)
    state, effects = _turn(replace(state, phase=Phase.ORPHANED, turn_at=now), DeadlineReached(), now, rules)
    return state, (withdrawal, *effects)


def _peer_died_while_asking(state: Voter, event: ProcessDied, now: float, rules: Rules) -> Move:
    state = replace(state, dead=state.dead | {event.node})
    return _elected(state) if wins(state) else (state, ())


def _asked_long_enough(state: Voter, event: DeadlineReached, now: float, rules: Rules) -> Move:
    if now < state.turn_at:
        return state, ()
    because = f"{len(state.votes)} of {len(state.electorate.voters)} voters let this node host the store: no majority"
    return _give_up(state, because, now, rules, after=1)


def _give_up(state: Voter, because: str, now: float, rules: Rules, after: int) -> Move:
    withdrawal = _withdrawal(state, rules)
    state = replace(state, promised=(state.promised[0], ""), votes=frozenset())
    state, effects = _orphaned(state, because, now, rules, after)
    return state, (withdrawal, *effects)


def _withdrawal(state: Voter, rules: Rules) -> Withdraw:
    return Withdraw(asked(state.electorate, rules.node, gone(state)), state.promised[0])


def _elected(state: Voter) -> Move:
    epoch, own = state.promised
    because = f"elected to host the store (epoch {epoch}) by {', '.join(sorted(state.votes))}"
    state = replace(state, outvoted=gone(state) - state.dead, silent=False)
    return replace(state, phase=Phase.SERVING, host=own, epoch=epoch, because=because), (Serve(epoch),)


# -- the votes for others ---------------------------------------------------------------------------------------------


def _asked_while_following(state: Voter, event: VoteAsked, now: float, rules: Rules) -> Move:
    """Of a silent host, whoever has waited for a lease asks first; the others' last heartbeats are not much younger."""
    sent_at, newest = state.acknowledged
    late = rules.outvotes and newest <= state.newest and now >= sent_at + HOLDS * rules.lease_s
    if not late or event.ballot.epoch <= state.epoch:
        return _asked(state, event, now, rules)
    silent = replace(state, phase=Phase.ORPHANED, silent=True)
    after, effects = _asked(silent, event, now, rules)
    return (state, effects) if after is silent else (after, effects)


def _asked(state: Voter, event: VoteAsked, now: float, rules: Rules) -> Move:
    ballot = event.ballot
    if refusal := _refusal(state, ballot, now, rules):
        return state, (Answer(ballot, False, _seen(state, ballot), state.newest, refusal),)
    because = f"promised to let {ballot.candidate} host the store (epoch {ballot.epoch})"
    yes = Answer(ballot, True, ballot.epoch, state.newest, because, now - state.acknowledged[0])
    if state.promised == (ballot.epoch, ballot.candidate):
        return state, (yes,)  # its answer got lost
    return replace(
        state,
        phase=Phase.PROMISED,
        promised=(ballot.epoch, ballot.candidate),
        dead=state.dead | ballot.dead,
        # As `may_vote_until` counts, which holds longer for a silent host.
        acknowledged=(now - (SILENT_HOLDS - HOLDS) * rules.lease_s if state.silent else now, state.newest),
        because=because,
    ), (yes,)


def _refusal(state: Voter, ballot: Ballot, now: float, rules: Rules) -> str:
    """Why this node does not vote for it; empty if it does."""
    epoch, candidate = state.promised
    if state.phase in (Phase.FOLLOWING, Phase.SERVING):
        return f"{state.host} hosts the store (epoch {state.epoch}) and is not known here to be dead"
    if (epoch, candidate) == (ballot.epoch, ballot.candidate):
        return ""
    if _given(state, ballot):
        return f"the vote is promised to {candidate} (epoch {epoch})"
    if ballot.epoch <= max(state.epoch, epoch):
        return f"epoch {ballot.epoch} is over; epoch {max(state.epoch, epoch)} is known here"
    if ballot.newest < state.newest:
        return f"announcement {state.newest[1]} was read here, and the candidate knows only of {ballot.newest[1]}"
    if now >= may_vote_until(state, rules):
        return f"no heartbeat of this node was acknowledged for {HOLDS:g} of a lease"
    return ""


def _given(state: Voter, ballot: Ballot) -> bool:
    """Whether the vote belongs to another candidate, which may host by now."""
    return state.phase in (Phase.ASKING, Phase.PROMISED) and state.promised[1] not in {
        ballot.candidate, *state.dead, *ballot.dead
    }  # fmt: skip


def _seen(state: Voter, ballot: Ballot) -> int:
    """The epoch that a candidate has to exceed to get this vote; 0: that alone is not enough. Else two candidates would
    ask each other for ever, each for a greater one."""
    return 0 if _given(state, ballot) else max(state.epoch, state.promised[0])


def _withdrawn(state: Voter, event: Withdrawn, now: float, rules: Rules) -> Move:
    if state.promised != (event.epoch, event.candidate):
        return state, ()
    state = replace(state, promised=(event.epoch, ""))
    return _orphaned(state, f"{event.candidate} found no majority", now, rules)


def _nothing(state: Voter, event: Event, now: float, rules: Rules) -> Move:
    return state, ()


def _dead_besides(state: Voter, event: ProcessDied, now: float, rules: Rules) -> Move:
    return replace(state, dead=state.dead | {event.node}), ()


_EVENTS = (AnnouncementRead, HeartbeatAcknowledged, ProcessDied, VoteAsked, VoteAnswered, Withdrawn, HostFound)
_MOVES: Mapping[Phase, tuple[Callable[..., Move], ...]] = {
    Phase.FOLLOWING: (_read, _acknowledged, _died, _asked_while_following, _nothing, _nothing, _found),
    Phase.ORPHANED: (_read_late, _heard_again, _dead_besides, _asked, _nothing, _nothing, _found),
    Phase.ASKING: (_nothing, _heard_again, _peer_died_while_asking, _asked, _counted, _nothing, _found_while_asking),
    Phase.PROMISED: (_nothing, _nothing, _died, _asked, _nothing, _withdrawn, _found),
    Phase.SERVING: (_read, _nothing, _dead_besides, _asked, _nothing, _nothing, _nothing),
}
TRANSITIONS: Mapping[tuple[Phase, type[Event]], Callable[..., Move]] = {
    **{(phase, event): move for phase, row in _MOVES.items() for event, move in zip(_EVENTS, row, strict=True)},
    (Phase.FOLLOWING, DeadlineReached): _silent,
    (Phase.ORPHANED, DeadlineReached): _turn,
    (Phase.ASKING, DeadlineReached): _asked_long_enough,
    (Phase.PROMISED, DeadlineReached): _nothing,
    (Phase.SERVING, DeadlineReached): _nothing,
}
"""Each pair is here: what cannot follow from the last event may still arrive late, and then changes nothing."""
