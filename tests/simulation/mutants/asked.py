"""Planted bugs in what is asked of all ranks: requests, answers and agreements."""

from __future__ import annotations

from elastic_agent.agent.lifecycle import on_agreement, transitions, verdicts
from elastic_agent.rendezvous.agreements import Agreement, Answer
from elastic_agent.rendezvous.coordinator import agreements, takeover
from elastic_agent.rendezvous.coordinator import machine as coordinator
from elastic_agent.rendezvous.coordinator.state import Rendezvous
from elastic_agent.rendezvous.records import NodeRecord

from .planting import Mutant
from .syntax import branch, call, choice, condition, fields, given

AGREEMENT = fields(Agreement)
ANSWER = fields(Answer)
RECORD = fields(NodeRecord)
RENDEZVOUS = fields(Rendezvous)

ASKED = (
    # -- which boundary
    Mutant("the smallest bound is the boundary", agreements.advance, call(max).calls(min)),
    Mutant("a boundary is chosen before all have answered", agreements.advance, branch(4).never()),
    Mutant("a bound is a boundary too small", on_agreement.on_bound, call(Answer).argument(1).plus(-1)),
    Mutant("a decision is not passed on to workers", on_agreement.follow, branch(3).never()),
    # -- when it is over
    Mutant("an agreement is over once one node has acted", agreements.advance, call(all).calls(any)),
    Mutant("workers without boundaries are waited for", agreements.advance, branch(3).never()),
    Mutant("a node never reports that its workers acted", on_agreement.on_acted, given(ANSWER.done).becomes(False)),
    Mutant("workers wait on behind what is over", on_agreement.follow, branch(5).never()),
    Mutant("a node that missed the end holds its workers", on_agreement.follow, choice(0).never()),
    Mutant("one node that finished is all", agreements.why_stopped, call(all).calls(any)),
    Mutant("a restart does not end the round", coordinator._planned, branch(1).never()),
    # -- what was asked for
    Mutant("a request is dropped", on_agreement.ask, branch(0).always()),
    Mutant("a record lacks what its node asks for", transitions.publish, given(RECORD.requests).removed()),
    Mutant("a record lacks its node's answer", transitions.publish, given(RECORD.answer).removed()),
    Mutant("a node forgets another's requests", on_agreement.without_served, condition(0).always()),
    Mutant("what was served stays in records", on_agreement.without_served, branch(0).always()),
    Mutant("what was served is served again", agreements._over, given(RENDEZVOUS.served).removed()),
    Mutant("a kill waits for a save that cannot be", agreements.advance, branch(1).never()),
    Mutant("a kill waits for a round", coordinator._killed, branch(0).always()),
    Mutant("a successor forgets who asks", takeover._resume, given(RENDEZVOUS.asking).removed()),
    Mutant("a successor forgets what was served", takeover._resume, given(RENDEZVOUS.served).removed()),
    # -- how agents end
    Mutant("a node that finished ignores the kill switch", verdicts.of_closed, branch(0).never()),
)
