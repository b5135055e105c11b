"""Who may vote for the next host, as each announcement of a round says. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...proto.frozen import dataclass

VOTERS = 7
"""So many members of a round, the first, may vote: three of them may die, and a round of a thousand asks no more."""


@dataclass(frozen=True, slots=True)
class Electorate:
    """Of one round. A candidate needs votes of each group, as `elects` says."""

    voters: tuple[str, ...] = ()
    """The first members, by group rank. Empty: nobody is elected while this round is the last that began."""
    before: tuple[str, ...] = ()
    """Those voters of the round before that are members of this one: they may not have read yet that it has begun."""

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """In each of which a candidate needs votes."""
        return (self.voters, self.before) if self.before else (self.voters,)


def of_round(members: Sequence[str], last: Electorate, absent: Collection[str]) -> Electorate:
    """Of a round with these members, by group rank. `last`: of the round before. `absent`: nodes that said goodbye, or
    have sent no heartbeat for a lease; none of them votes until it has read this round.

    A voter that lives, sends heartbeats and has no place any more could elect a host with others that have not read of
    this round either. That is rare (a rank claimed twice, a report that is overdue), so then nobody is elected."""
    places = set(members)
    if any(voter not in places and voter not in absent for voter in last.voters):
        return Electorate()
    return Electorate(tuple(members[:VOTERS]), tuple(voter for voter in last.voters if voter in places))


def elects(electorate: Electorate, votes: Collection[str], dead: Collection[str], host: str) -> bool:
    """Whether these votes replace this host: in each group all that are not known to be dead, or more than half of all
    but the host. Of a group that is dead nobody can elect another."""
    return bool(votes) and all(_majority(group, votes, dead, host) for group in electorate.groups)


def outvotes(electorate: Electorate, votes: Collection[str], host: str) -> bool:
    """Whether these votes replace a host that is only silent: more than half of each group, it and the dead counted. So
    any two majorities share a voter, and the host alone with fewer has none. By the round before nobody replaced it if
    its other voters were no majority, as of two; then no vote of theirs is needed."""
    others = sum(node != host for node in electorate.before)
    could = 2 * others > len(electorate.before)
    groups = electorate.groups if could else (electorate.voters,)
    return all(2 * sum(node in votes for node in group) > len(group) for group in groups)


def _majority(group: Collection[str], votes: Collection[str], dead: Collection[str], host: str) -> bool:
    """Voters that died count, as they may have voted for another, which lives: those that are left, and do not reach
    it, must be no majority."""
    living = [node for node in group if node not in dead]
    yes = sum(node in votes for node in living)
    return yes == len(living) or 2 * yes > sum(node != host for node in group)


def asked(electorate: Electorate, own: str, dead: Collection[str]) -> tuple[str, ...]:
    """Whom a candidate asks, itself not among them."""
    everyone = dict.fromkeys((*electorate.voters, *electorate.before))
    return tuple(node for node in everyone if node != own and node not in dead)
