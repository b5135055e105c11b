"""Every order in which a few nodes can elect: each message arrives at any time, several times, or never.

Messages stay in flight for ever, so a state has only more of them than the one before. Deadlines pass at any time, and
a node may die at any time. Votes do not lapse here; that needs clocks, which `play` has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from elastic_agent.proto.frozen import replace
from elastic_agent.rendezvous.election import events
from elastic_agent.rendezvous.election.electorate import Electorate
from elastic_agent.rendezvous.election.machine import step
from elastic_agent.rendezvous.election.state import Phase, Rules, Voter

from .cluster import Broken

NOW = 1e6
ALWAYS = 1e9
LEASE_S = 5.0
Message = tuple[str, events.Event]
"""To whom, and what."""


@dataclass(frozen=True)
class Job:
    """A state of the whole."""

    voters: tuple[tuple[str, Voter], ...]
    """The living nodes."""
    sent: frozenset[Message]
    dead: frozenset[str]
    elected: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Bounds:
    """What ends the search."""

    asks: int
    """Ballots of one node."""
    deaths: int
    """Beside that of the host."""


def orphans(host: str, nodes: str) -> Job:
    """Voters of one round whose host is dead; none has noticed."""
    voter = Voter(host, newest=(1, 7), electorate=Electorate((host, *nodes)), acknowledged=(ALWAYS, (1, 1)))
    voters = tuple((node, voter) for node in nodes)
    return Job(voters, frozenset((node, events.ProcessDied(host)) for node in nodes), frozenset(host))


def reachable(start: Job, bounds: Bounds, most: int) -> Iterator[Job]:
    """Every state that can follow, each once; at most so many. Raises Broken."""
    seen, waiting = {start}, deque([start])
    while waiting and len(seen) < most:
        job = waiting.popleft()  # the shortest first
        yield job
        for following in _following(job, bounds):
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    if waiting:
        raise RuntimeError(f"more than {most} states")


def _following(job: Job, bounds: Bounds) -> Iterator[Job]:
    for node, voter in job.voters:
        arriving = [event for to, event in job.sent if to == node]
        ballots = {event.ballot for _, event in job.sent if isinstance(event, events.VoteAsked)}
        asked = sum(ballot.candidate == node for ballot in ballots)
        if voter.phase is Phase.ASKING or (voter.phase is Phase.ORPHANED and asked < bounds.asks):
            arriving.append(events.DeadlineReached())
        for event in arriving:
            following = _after(job, node, voter, event)
            if following != job:
                yield following
        if len(job.dead) <= bounds.deaths:
            left = tuple((other, at) for other, at in job.voters if other != node)
            notices = {(other, events.ProcessDied(node)) for other, _ in left}
            yield Job(left, job.sent | notices, job.dead | {node}, job.elected)


def _after(job: Job, node: str, voter: Voter, event: events.Event) -> Job:
    done = step(voter, event, NOW, Rules(node, LEASE_S))
    now = replace(done.state, because="", turn_at=0.0, acknowledged=(ALWAYS, (1, 1)))
    sent, elected = set(job.sent), list(job.elected)
    for effect in done.effects:
        if isinstance(effect, events.Ask):
            sent |= {(voter, events.VoteAsked(effect.ballot)) for voter in effect.voters}
        elif isinstance(effect, events.Answer):
            ballot = effect.ballot
            answer = events.VoteAnswered(node, ballot.epoch, effect.yes, effect.seen, effect.newest, effect.silent_s)
            sent.add((ballot.candidate, answer))
        elif isinstance(effect, events.Withdraw):
            sent |= {(voter, events.Withdrawn(node, effect.epoch)) for voter in effect.voters}
        elif isinstance(effect, events.Serve):
            elected.append((effect.epoch, node))
            sent |= {(other, events.HostFound(node, effect.epoch)) for other, _ in job.voters if other != node}
    after = Job(
        tuple((other, now if other == node else at) for other, at in job.voters),
        frozenset(sent),
        job.dead,
        tuple(elected),
    )
    _check(after)
    return after


def _check(job: Job) -> None:
    epochs = [epoch for epoch, _ in job.elected]
    if len(set(epochs)) < len(epochs):
        raise Broken(f"two nodes were elected for one epoch: {job.elected}")
    serving = [node for node, voter in job.voters if voter.phase is Phase.SERVING]
    if len(serving) > 1:
        raise Broken(f"{' and '.join(serving)} host at once: {job.elected}")
