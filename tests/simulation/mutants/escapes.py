"""The planted bugs that no invariant finds."""

from __future__ import annotations

ESCAPES = {
    "a place given up goes unnoticed": "none is given up without a failure or a departure: a second line of defence",
    "an announcement received while preparing is forgotten": (
        "a takeover must fall into the moment in which a node that was lost prepares its place; "
        "a_dead_node_is_replaced.story has it"
    ),
    "a node that missed the end holds its workers": (
        "two announcements must come within one read; tests/unit/agent/lifecycle/test_requests.py has it"
    ),
    "workers wait on behind what is over": (
        "their node must miss all of an agreement but its end; tests/unit/agent/lifecycle/test_requests.py has it"
    ),
    "a written record is not reported": (
        "a node that leaves waits until its time is over, and no longer; the_coordinator_leaves.story has it"
    ),
    "a node that stands still stands for coordinator": (
        "it waits until its loop turns, and looks again when it stands: a second line of defence"
    ),
    "a permission opens a fence that is passed": (
        "a witness must answer in the moment in which the fence is passed; tests/unit/rendezvous/test_fencing.py has it"
    ),
    "a guest that may ask nobody takes that for a yes": (
        "it does not come to ask: a second line of defence; tests/unit/rendezvous/test_fencing.py has it"
    ),
    "the fence of an only guest stays as far in a larger round": (
        "it must be cut off between that round's announcement and its next heartbeat; "
        "tests/unit/rendezvous/test_fencing.py has it"
    ),
    "reports of members are not waited for": (
        "a report must come behind the judgement that it would change; a_master_misses_its_round.story has it"
    ),
    "a certain cause does not wait for who has not reported the round": (
        "a member must be lost before it reports a round that fails by a certain cause; "
        "tests/unit/rendezvous/coordinator/test_charging.py has it"
    ),
    "the leases are not read again": (
        "a node must come back between the end of its round and the next reading of the leases; "
        "tests/unit/rendezvous/coordinator/test_cut_off.py has it"
    ),
}
"""Bugs that no seed needs to find, and why."""
