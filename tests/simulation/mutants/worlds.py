"""Planted bugs in what keeps workers of two rounds apart."""

from __future__ import annotations

from elastic_agent.rendezvous.coordinator import fencing as coordinator_fencing
from elastic_agent.rendezvous.coordinator import leases
from elastic_agent.rendezvous.coordinator import machine as coordinator
from elastic_agent.rendezvous.coordinator.nodes import Seen
from elastic_agent.rendezvous.driver.fencing import Fencing

from ..stores.witnesses import SEEN
from ..world.fence import COUNTED
from .planting import Misplaced, Mutant
from .syntax import assignment, branch, choice, fields, given, operation, returned

NODE = fields(Seen)

WORLDS = (
    Mutant("a heartbeat counts for longer than a lease", Fencing.heartbeat_acknowledged, operation(0).plus(5)),
    Mutant("a permission counts for longer than a lease", Fencing._permitted, operation(0).plus(5)),
    Mutant("a gap is not counted", Fencing.heartbeat_acknowledged, assignment(3).removed()),
    Mutant("a permission opens a fence that is passed", Fencing._permitted, branch(0).always()),
    Mutant("a witness permits what its record denies", Fencing.permits, branch(0).never()),
    Mutant("a witness conceals what it has just permitted", Fencing.recorded, choice(0).never()),
    Mutant("a witness is believed too early", coordinator_fencing.ends_at, choice(0).never()),
    Mutant("a witness is believed that has said nothing", coordinator_fencing.ends_at, branch(2).operand(2).removed()),
    Mutant("no round waits for nodes that are cut off", coordinator._judge_over, branch(-1).never()),
    Mutant("the leases are not read again", coordinator_fencing.needs_reading, returned(0).never()),
    Mutant("the only guest of a host is not waited for", coordinator_fencing.ends_at, operation(0).plus(-5)),
    Mutant("a guest that may ask nobody takes that for a yes", Fencing.ask, branch(0).operand(1).removed()),
    Mutant("the fence of an only guest stays as far in a larger round", Fencing.follow, branch(0).never()),
    Mutant("nobody notes when a guest was lost", leases._aged, given(NODE.lost_at).becomes(0.0)),
    Misplaced("what an agent does not see on its own host has ended", SEEN, "other hosts", True),
    Misplaced("the clock of the fence stops while its host is suspended", COUNTED, "suspended", False),
)
