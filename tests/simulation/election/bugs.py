"""Planted bugs in the election of a host: each must break a promise."""

from __future__ import annotations

from elastic_agent.rendezvous.election import electorate, machine, state

from ..mutants.planting import Mutant
from ..mutants.syntax import branch, choice, operation, returned

BUGS = (
    Mutant("a minority elects", electorate._majority, operation(0).becomes(99)),
    Mutant("half of the voters elect", electorate._majority, operation(0).plus(1)),
    Mutant("a promise is broken", machine._given, returned(0).never()),
    Mutant("a candidate without the newest announcement is elected", machine._refusal, branch(4).never()),
    Mutant("newcomers elect alone", electorate.Electorate.groups, choice(0).never()),
    Mutant("a living voter without a place is forgotten", electorate.of_round, branch(0).never()),
)
"""In some seed."""
BY_SCHEDULE = (
    Mutant("a node elects that the host may have lost", state.may_vote_until, returned(0).becomes(1e9)),
    Mutant("what was acknowledged need not be read", state.may_vote_until, choice(1).always()),
)
"""In one schedule."""
BY_ORDERS = BUGS[:2]
"""In some order of messages."""
