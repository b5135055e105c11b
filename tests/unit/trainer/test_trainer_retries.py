"""Failures of a trainer's workers, counted by each node's program."""

from __future__ import annotations

from elastic_agent.trainer.program.retries import Retries


def test_a_node_alone_counts_every_failure() -> None:
    retries = Retries(1, several_nodes=False)
    assert not retries.exceeded(0, rounds=1)
    assert not retries.exceeded(1, rounds=1)
    assert retries.exceeded(2, rounds=2)


def test_each_call_has_its_own_retries() -> None:
    retries = Retries(0, several_nodes=False)
    assert retries.exceeded(1, rounds=1)
    retries.allow(0)
    assert not retries.exceeded(1, rounds=2)
    assert retries.exceeded(2, rounds=2)


def test_of_several_nodes_the_workers_count_as_long_as_they_come() -> None:
    retries = Retries(0, several_nodes=True)
    for failures in range(10):
        assert not retries.exceeded(failures, rounds=failures + 1)
        assert not retries.exceeded(failures + 1, rounds=failures + 1)


def test_workers_that_never_come_again_end_a_job_of_several_nodes() -> None:
    """As where the disk of their state is full: each restart fails before anybody can count it."""
    retries = Retries(2, several_nodes=True)
    assert not retries.exceeded(0, rounds=1)
    assert [retries.exceeded(failures, rounds=1) for failures in (1, 2, 3, 4)] == [False, False, False, True]


def test_workers_that_never_come_at_all_are_counted_by_each_node() -> None:
    retries = Retries(1, several_nodes=True)
    assert [retries.exceeded(failures, rounds=0) for failures in (1, 2)] == [False, True]
