"""This node's part in who hosts a c10d store next, once that is dead or has left: docs/adr/0049.

The machine of `rendezvous/election` decides; its thread passes on what happens and does what it says. What nodes say to
each other are lines of text on `links.py`:

    ask EPOCH CANDIDATE NEWEST DEAD,...            a candidate, to a voter
    say EPOCH 0|1 SEEN NEWEST SILENT_MS            the answer
    off CANDIDATE EPOCH                            the candidate never hosts for this epoch
    bye NEWEST                                     the host, to all voters: it announces nothing behind this

NEWEST is the epoch and the version of an announcement, with a colon between.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from functools import partial

from ...proto.frozen import replace
from ..codec.records import encode_round
from ..coordinator.events import Elected
from ..election import events, machine
from ..election.events import Ballot, Position
from ..election.state import Rules, Voter, has_given_up, has_no_successor
from ..endpoint import Endpoint
from ..records import NodeRecord, NodeState, Round, RoundPhase, Witness
from ..store import FIRST_EPOCH, Store
from ..text import count
from .connection import Connection
from .events import Post, StoreHandedOver
from .inbound import Warn, await_records, read_state
from .links import Links, Reply
from .movable import Addressed, Movable

UNREAD = 10_000
"""Announcements of a dead host that its successor may not have read, by far; its own are numbered behind them."""

Spawn = Callable[[str, Callable[[], None]], None]
"""As `ThreadGroup.spawn`."""
Answered = tuple[events.Event, Reply | None]


def boot_clock() -> float:
    """Seconds, suspension counted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Succession:
    """For any thread, unless a method says otherwise."""

    def __init__(
        self, rules: Rules, links: Links, say: Callable[[str], None], expect: Callable[[str], None] | None = None
    ) -> None:
        """`say` is called with sentences for people, and `expect` with what becomes of the job should its host die."""
        self._node, self._links, self._say, self._expect = rules.node, links, say, expect or say
        self._movable: Movable | None = None
        self._addressed: Addressed | None = None
        self._spawn: Spawn | None = None
        self._tells = False
        self._rules = rules
        self._voter: Voter | None = None
        self._acknowledged: events.HeartbeatAcknowledged | None = None
        """The last one, which may come before the first announcement."""
        self.on_died: Callable[[str], None] = lambda _: None
        """Called with each node whose process is dead, from any thread."""
        self._happened: queue.SimpleQueue[Answered | None] = queue.SimpleQueue()
        self._rounds: dict[Position, Round] = {}
        """Announcements that the machine may not have taken yet, and the newest that it has."""
        self._known: dict[str, Witness] = {}
        """Where the voters of the newest announcement are, and its host."""
        self._names: dict[str, str] = {}
        """For people: of these, which may have left its round, and of its members."""
        self._dead: frozenset[str] = frozenset()
        self._read: Position = (0, 0)
        """The newest announcement that was read."""
        self._goodbyes: dict[str, Position] = {}
        """Hosts that said goodbye, and the last thing that each has announced."""
        self._awaiting: Connection | None = None
        """While this node takes over and waits for others: its connection to its own store."""
        self._wake_at = float("inf")
        self._store = ""
        self._muted, self._mentioned = False, ""
        self._serve: Callable[[int], None] = lambda _: None
        self._renew: Callable[[], None] = lambda: None

    @property
    def fd(self) -> int:
        """What whoever owns the workers holds as long as one may run; -1: nothing."""
        return self._links.fd

    def open(
        self,
        store: Store,
        secret: bytes,
        serve: Callable[[int], None],
        spawn: Spawn,
        renew: Callable[[], None] = lambda: None,
    ) -> None:
        """Take part from now on. Before the first record of this node is written. `serve` is called with an epoch, on
        the thread that `spawn` starts, once this node is elected; `renew` there, if calls to the host are of no use any
        more."""
        if not isinstance(store, Movable):
            return
        self._store, self._serve, self._spawn, self._renew = store.reserved, serve, spawn, renew
        self._movable, self._addressed = store, store if isinstance(store, Addressed) else None
        store.notify_moves(lambda host, epoch: self._post(events.HostFound(host, epoch)))
        self._links.open(self._node, secret, self._died, self._heard, self._asked)
        spawn("voter", self._run)

    def now(self) -> float:
        """Seconds on the clock of the machine."""
        return boot_clock()

    def close(self) -> None:
        self._links.close()
        self._happened.put(None)

    # -- what happens -------------------------------------------------------------------------------------------------

    def recorded(self, record: NodeRecord) -> NodeRecord:
        """The record with where this node votes, and could host. A node that leaves votes no more."""
        self._muted = self._muted or record.state in (NodeState.LEAVING, NodeState.ENDED)
        if self._store.startswith(":") and record.addr:  # a port of all addresses of this node
            self._store = str(Endpoint(record.addr, int(self._store[1:])))
        return replace(record, vote_port=self._links.port, store=self._store)

    def follow(self, seen: Round) -> None:
        """This announcement was read. For one thread."""
        if seen.host is None:
            return
        if seen.phase is RoundPhase.RUNNING and seen.nodes > 1:
            self._mention(_outlook(seen, self._rules))
        if self._voter is None and seen.host.node == self._node:
            return
        if self._voter is None:
            self._voter = Voter(seen.host.node, seen.epoch)
            if self._acknowledged is not None:
                self._post(self._acknowledged)
        voters = tuple(voter.node for voter in seen.voters)
        known = {**self._known, **{voter.node: voter for voter in (*seen.voters, seen.host)}}
        self._known = {node: known[node] for node in (*voters, *seen.before, seen.host.node) if node in known}
        left = {node: name for node, name in self._names.items() if node in self._known}
        self._names = {**left, **{member.node: member.name for member in seen.members}}
        newest = (seen.epoch, seen.version)
        self._rounds[newest] = seen
        votes = self._node in (*voters, *seen.before)
        self._expect_hosts(seen, votes)
        gone = self._dead | {self._node}
        self._links.keep(tuple(peer for peer in self._known.values() if votes and peer.node not in gone))
        self._post(events.AnnouncementRead(newest, voters, seen.before))
        self._read = newest
        self._take_leave()

    def acknowledged(self, session: Store, sent_at: float, version: int) -> None:
        """The store has acknowledged a heartbeat that was sent then, on `boot_clock`."""
        if isinstance(session, Movable):
            self._acknowledged = events.HeartbeatAcknowledged(session.epoch, sent_at, version)
            self._post(self._acknowledged)

    def _post(self, event: events.Event, reply: Reply | None = None) -> None:
        self._happened.put((event, reply))

    def _died(self, node: str, left: bool = False) -> None:
        self._dead |= {node}
        self.on_died(node)
        if (awaiting := self._awaiting) is not None:
            awaiting.close()  # which asks anew, without this node
        self._post(events.ProcessDied(node, left))

    def _take_leave(self) -> None:
        """A host that said goodbye is gone once all is read that it has announced: its store serves as long."""
        for node, newest in tuple(self._goodbyes.items()):
            if newest <= self._read and node not in self._dead:
                self._died(node, left=True)
                self._links.drop(node)

    def _heard(self, node: str, text: str) -> None:
        try:
            if text.startswith("bye "):
                self._goodbyes[node] = _position(text.removeprefix("bye "))
                self._take_leave()
                return
            _, epoch, yes, seen, newest, silent_ms = text.split(" ")
            silent_s = int(silent_ms) / 1e3
            self._post(events.VoteAnswered(node, int(epoch), yes == "1", int(seen), _position(newest), silent_s))
        except ValueError:
            return  # of a later version; as good as no answer

    def _asked(self, text: str, reply: Reply) -> None:
        try:
            if text.startswith("off "):
                _, candidate, epoch = text.split(" ")
                self._post(events.Withdrawn(candidate, int(epoch)))
                return
            _, epoch, candidate, newest, dead = text.split(" ")
            ballot = Ballot(int(epoch), candidate, _position(newest), frozenset(dead.split(",")))
            self._post(events.VoteAsked(ballot), reply)
        except ValueError:
            return

    def _mention(self, outlook: str) -> None:
        """Say this, unless it was said last."""
        if outlook != self._mentioned:
            self._mentioned = outlook
            self._expect(outlook)

    def _expect_hosts(self, seen: Round, votes: bool) -> None:
        """Where the job has one endpoint: who could host next. Behind a first host, tell it, and the server there."""
        if (store := self._addressed) is not None and (host := seen.host) is not None:
            # Before the first round nobody could: whoever is at the endpoint begins a new job at once.
            followed = any(node != host.node for node in (*(voter.node for voter in seen.voters), *seen.before))
            others = (*seen.voters, host) if followed else ()
            store.expect(tuple(other.store for other in others if other.node != self._node))
        if votes and seen.epoch > FIRST_EPOCH:
            self._tell()

    def _tell(self) -> None:
        if self._movable is None or self._spawn is None or self._tells:
            return
        self._tells = True
        self._spawn("usher", self._movable.tell_old)
        if self._addressed is not None:
            self._spawn("herald", self._addressed.tell)

    def _named(self, text: str) -> str:
        """With the names that people know in place of the identities of nodes."""
        for node, name in self._names.items():
            text = text.replace(node, name)
        for node, there in self._known.items():  # a host that never had a place is known by where it serves
            text = text.replace(node, there.store or there.addr or node)
        return text

    # -- what follows -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            left_s = min(max(0.0, self._wake_at - boot_clock()), 3600.0)
            try:
                happened = self._happened.get(timeout=left_s)
            except queue.Empty:
                self._wake_at = float("inf")
                happened = events.DeadlineReached(), None
            if happened is None:
                return
            if self._voter is not None and not self._muted:
                self._step(*happened)

    def _step(self, event: events.Event, reply: Reply | None) -> None:
        if self._voter is None:
            return
        before = self._voter
        done = machine.step(before, event, boot_clock(), self._rules)
        self._voter = done.state
        for old in [position for position in tuple(self._rounds) if position < done.state.newest]:
            del self._rounds[old]
        if done.because != before.because:
            self._say(self._named(done.because))
        self._look_elsewhere(before, done.state)
        if self._addressed is not None and has_no_successor(done.state, self._rules):
            self._addressed.expect(())
        for effect in done.effects:
            self._carry_out(effect, reply)

    def _look_elsewhere(self, before: Voter, after: Voter) -> None:
        """Of a silent host, calls are given up long after another one is elected."""
        changed = (before.silent, has_given_up(before)) != (after.silent, has_given_up(after))
        if self._movable is not None and after.silent and changed:
            self._movable.suspect(has_given_up(after))
            self._renew()

    def _carry_out(self, effect: events.Effect, reply: Reply | None) -> None:
        if isinstance(effect, events.Ask):
            ballot = effect.ballot
            dead = ",".join(sorted(ballot.dead))
            line = f"ask {ballot.epoch} {ballot.candidate} {_text(ballot.newest)} {dead}"
            self._send(effect.voters, line)
        elif isinstance(effect, events.Withdraw):
            self._send(effect.voters, f"off {self._node} {effect.epoch}")
        elif isinstance(effect, events.Answer):
            if reply is not None:
                try:
                    silent_ms = int(effect.silent_s * 1e3)
                    said = f"{effect.yes:d} {effect.seen} {_text(effect.newest)} {silent_ms}"
                    reply(f"say {effect.ballot.epoch} {said}")
                except OSError:
                    return  # the candidate is gone, or asks again
        elif isinstance(effect, events.WakeAt):
            self._wake_at = effect.when
        else:
            self._serve(effect.epoch)

    def _send(self, voters: tuple[str, ...], line: str) -> None:
        for voter in voters:
            self._links.send(voter, line)

    # -- leaving, and taking over -------------------------------------------------------------------------------------

    def hand_over(self, newest: Position, store: Store, post: Post) -> None:
        """Host the store no more. On the thread that announces, behind `newest`, the last that it has announced: this
        node votes no more, as it has published that it leaves, so it counts as dead for all who know."""
        self._say("this node hands the store over: the others elect the node that hosts it from here on")
        self._links.say_goodbye(f"bye {_text(newest)}")
        post(StoreHandedOver())
        store.close_host()

    def take_over(
        self,
        epoch: int,
        store: Store,
        connection: Connection,
        job: bytes,
        warn: Warn,
    ) -> tuple[int, Elected] | None:
        """Serve the store here, and return with what this node coordinates: once all living members of the round are
        here, or a lease has passed, by which they are lost. None: this node ends. On the thread of `serve`."""
        if not isinstance(store, Movable):
            return None
        elected_at = time.monotonic()
        silent_since = elected_at - (boot_clock() - self._voter.heard_at) if self._voter is not None else None
        announced, awaited = self.handed_over(epoch)
        store.host(epoch, self._node, job, (announced.version, encode_round(announced)), self._store)
        self._tell()
        self._renew()  # calls to a host that is silent would be given up much later
        until = time.monotonic() + self._rules.lease_s
        self._awaiting = connection
        here = connection.call(lambda session: await_records(awaited - self._dead, until, session, self._node))
        self._awaiting = None
        if here is None:
            return None
        state = connection.call(partial(read_state, epoch, job, announced.version, warn))
        if state is None or (voter := self._voter) is None:
            return None
        ended, outvoted = voter.dead | self._dead, voter.outvoted
        found = replace(state[1], ended=ended, outvoted=outvoted, elected_at=elected_at, silent_since=silent_since)
        return state[0], found

    def handed_over(self, epoch: int) -> tuple[Round, frozenset[str]]:
        """With what this node begins as the host in this epoch: the newest announcement that a majority has read; and
        who must be asked where it stands before anything is decided. For `serve`."""
        voter = self._voter
        if voter is None:
            raise ValueError("a node was elected that has read nothing")
        newest = self._rounds[voter.newest]
        # That round may have begun, with nobody alive that knows: its number is not given to another.
        begun = newest.phase in (RoundPhase.GATHERING, RoundPhase.LAST_CALL)
        own = next((each for each in newest.voters if each.node == self._node), None)
        following = replace(
            newest,
            version=newest.version + UNREAD,
            epoch=epoch,
            number=newest.number + begun,
            host=own or Witness(self._node, "", self._links.port, self._store),
        )
        awaited = frozenset(member.node for member in newest.members) - voter.dead - voter.outvoted
        return following, awaited

    @property
    def host_name(self) -> str:
        """The node that hosts the store, for people; empty if that is not known."""
        return self._names.get(voter.host, "") if (voter := self._voter) is not None else ""


def _outlook(seen: Round, rules: Rules) -> str:
    """What becomes of the job should the host of the store die, for people."""
    able = len(seen.voters)
    if able < 2:
        return "no other node of this round could host the store: the job ends with the node that hosts it"
    killed = f"should the agent that hosts the store be killed, another of {count(able, 'node')} hosts it and all go on"
    if able > 2 and rules.outvotes:
        return (
            f"{killed}; should it be silent for {rules.lease_s:g} s, they do if {able // 2 + 1} of the {able} that may "
            "vote reach each other"
        )
    if able == 2 and seen.nodes == 2 and rules.survivor_goes:
        return (
            f"two nodes and survivor=go: should the host of the store be silent for {rules.lease_s:g} s, the other "
            "goes on; if it was only cut off, both train at once, and may write over each other's checkpoints"
        )
    if able == 2 and seen.nodes == 2:
        return (
            "two nodes: should the agent that hosts the store be killed, the other goes on; should its host lose power "
            "or be cut off, the other waits for it, as it cannot tell whether it goes on elsewhere"
        )
    return killed


def _text(position: Position) -> str:
    return f"{position[0]}:{position[1]}"


def _position(text: str) -> Position:
    epoch, version = text.split(":")
    return int(epoch), int(version)
