"""What a scheduler may do for a job: nodes that would help, that are suspect, that may be taken."""

from __future__ import annotations

from elastic_agent.control.decisions import capacity
from elastic_agent.control.service.messages import Node


def node(name: str, rank: int | None, state: str = "working", heard_s: float = 0.1, *, own: bool = False) -> Node:
    return Node(name, state, rank, 0, 1, heard_s, 3, own)


THREE = [node("a", 0, own=True), node("b", 1), node("c", 2)]


def test_nodes_that_are_needed_and_that_would_get_a_place_are_counted() -> None:
    """Those that are lost or leave have none; once the job ends nobody helps."""
    assert (capacity.needed(THREE, 2, over=False), capacity.helpful(THREE, 5, over=False)) == (0, 2)
    fewer = [*THREE[:1], node("b", 1, "lost"), node("c", 2, "leaving")]
    assert (capacity.needed(fewer, 2, over=False), capacity.helpful(fewer, 5, over=False)) == (1, 4)
    assert (capacity.needed(fewer, 2, over=True), capacity.helpful(fewer, 5, over=True)) == (0, 0)


def test_silent_lost_and_charged_nodes_are_suspect() -> None:
    """The node that asks is not silent to itself; where no lease is known, nobody is."""
    nodes = [node("a", 0, own=True, heard_s=9), node("b", 1, heard_s=3), node("c", 2), node("d", None, "lost", 9)]
    assert capacity.suspects(nodes, 5.0, "c") == ("b", "c", "d")
    assert capacity.suspects(nodes, 0.0, "") == ("d",)
    assert capacity.suspects([node("c", 2, "ended")], 5.0, "c") == ()


def test_spares_go_first_then_the_last_to_come_and_never_the_host_of_the_store() -> None:
    nodes = [*THREE, node("d", None, "waiting")]
    assert capacity.spare(nodes, 1, "a", over=False, busy=False) == ("d", "c", "b")
    assert capacity.spare(nodes, 2, "c", over=False, busy=False) == ("d", "b")
    assert capacity.spare(nodes, 1, "", over=False, busy=False) == ("d", "c", "b")
    assert capacity.spare(nodes, 4, "a", over=False, busy=False) == ()


def test_nothing_may_be_taken_while_the_job_ends_or_all_ranks_are_about_to_save() -> None:
    assert capacity.spare(THREE, 1, "a", over=True, busy=False) == ()
    assert capacity.spare(THREE, 1, "a", over=False, busy=True) == ()
