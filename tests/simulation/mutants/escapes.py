"""The planted bugs that no invariant finds."""

from __future__ import annotations

ESCAPES = {
    "a place given up goes unnoticed": "none is given up without a failure or a departure: a second line of defence",
    "the place of a node is forgotten": (
        "it must report again that it waits before it receives the round that it has a place in, which must be over by "
        "then; "
        "tests/unit/rendezvous/coordinator/test_takeover.py has it"
    ),
    "an announcement received while preparing is forgotten": (
        "a takeover must fall into the moment in which a node that was lost prepares its place; "
        "a_dead_node_is_replaced.story has it"
    ),
    "a successor forgets in which round a node was": (
        "it takes a node for waiting that has a place in the round, until its next record; "
        "tests/unit/rendezvous/coordinator/test_takeover.py has it"
    ),
    "an announcement sent again is refused": (
        "the answer to an announcement must be lost, and its write not; "
        "tests/integration/store_contract/test_store_announcements.py has it"
    ),
    "a node that missed the end holds its workers": (
        "two announcements must come within one read; tests/unit/agent/lifecycle/test_requests.py has it"
    ),
}
"""Bugs that no seed needs to find, and why."""
