"""The limit of open descriptors: the agent raises its own, its workers keep theirs."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from elastic_agent.agent import descriptors


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """This process's limits, put back at the end; no agent has raised them yet."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(descriptors, "_raised_to", -1)
    monkeypatch.setattr(descriptors, "_originally", 0)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def soft_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_the_agents_limit_is_raised_and_the_workers_is_the_one_it_was_started_with(limits: tuple[int, int]) -> None:
    """Also for the second nursery, or the second agent of a process, when the limit is raised already."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
    assert [descriptors.raise_soft_limit() for _ in range(2)] == [512, 512]
    assert soft_limit() == min(limits[1], descriptors.RAISED)


def test_a_limit_that_the_program_set_itself_is_the_workers(limits: tuple[int, int]) -> None:
    """It was lowered after an agent had raised it: the next agent's workers get the new one."""
    for own in (512, 300):
        resource.setrlimit(resource.RLIMIT_NOFILE, (own, limits[1]))
        assert descriptors.raise_soft_limit() == own


def test_a_limit_that_cannot_be_raised_stays_as_it_is(limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox may forbid it; the agent then works with what it has."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))

    def refuse(what: int, how: tuple[int, int]) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert descriptors.raise_soft_limit() == 512
    monkeypatch.undo()
    assert soft_limit() == 512
