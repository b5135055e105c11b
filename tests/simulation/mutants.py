"""The bugs that are planted (`planting.py`): each is found by an invariant, or listed with the reason why not."""

from __future__ import annotations

from elastic_agent.agent.inbox import Inbox
from elastic_agent.agent.lifecycle import events as agent_events
from elastic_agent.agent.lifecycle import machine as agent
from elastic_agent.agent.lifecycle import (
    on_deadline,
    on_request,
    on_round,
    on_store,
    on_workers,
    restart_policy,
    transitions,
    verdicts,
)
from elastic_agent.agent.lifecycle.state import Phase
from elastic_agent.agent.lifecycle.stop_ladder import Ladder
from elastic_agent.rendezvous.c10d import keys, notifications
from elastic_agent.rendezvous.c10d import store as c10d
from elastic_agent.rendezvous.coordinator import charging, deadlines, leases, observations, ranks, takeover
from elastic_agent.rendezvous.coordinator import machine as coordinator
from elastic_agent.rendezvous.coordinator.state import Rendezvous, Seen
from elastic_agent.rendezvous.driver import inbound
from elastic_agent.rendezvous.driver.connection import CallGuard, Connection
from elastic_agent.rendezvous.driver.driver import Driver
from elastic_agent.rendezvous.driver.term import Term
from elastic_agent.rendezvous.failures import charges

from .planting import Misplaced, Mutant

ESCAPES = {
    "a place given up goes unnoticed": "nobody gives one up without a failure or a goodbye: a second line of defence",
    "a moment unwatched counts": (
        "it takes a stall and a cut of the right lengths at once; tests/unit/rendezvous/test_leases.py has it"
    ),
    "the place of a node is forgotten": (
        "it must say again that it waits before it hears of the round that it has, and that round be over by then; "
        "tests/unit/rendezvous/test_takeover.py has it"
    ),
    "what was said meanwhile is forgotten": (
        "a takeover must fall into the moment in which a node that was lost prepares its place; "
        "a_dead_node_is_replaced.story has it"
    ),
    "a successor trusts the silent": (
        "who has a place and does not know it must stay deaf, yet heard, through a takeover and the end of the round; "
        "tests/unit/rendezvous/test_takeover.py has it"
    ),
}
"""Bugs that no seed need find, and why."""

MUTANTS: tuple[Mutant | Misplaced, ...] = (
    # -- who is in a round
    Mutant(
        "min_nodes is forgotten after the first round",
        coordinator._judge_gathering,
        "here >= rules.min_nodes and state.number > 1",
        "here >= 1 and state.number > 1",
    ),
    Mutant("last call goes on below min_nodes", coordinator._judge_last_call, "len(here) < rules.min_nodes", "False"),
    Mutant(
        "last call never ends", coordinator._judge_last_call, "now >= patience.last_call_ends(state, rules)", "False"
    ),
    Mutant("max_nodes is forgotten", ranks.choose, "[:places]", ""),
    Mutant("newcomers go first", ranks.choose, "(returning + newcomers)", "(newcomers + returning)"),
    Mutant("rank offsets count nodes", ranks.assign, "offset += record.nproc", "offset += 1"),
    Mutant("a full round is ended by an arrival", coordinator._arrival, "room <= 0", "room < 0"),
    Mutant("an arrival ends a round that is finishing", coordinator._arrival, " or state.finishing", ""),
    Mutant("arrivals are never settled", deadlines.arrivals_settled, "return min(", "return 1000 + min("),
    Mutant("the place of a node is forgotten", observations.note_node, "placed=old.placed if old else 0", "placed=0"),
    Mutant(
        "the old master port is used again",
        coordinator._start,
        "master_port=first.port",
        "master_port=state.master_port or first.port",
    ),
    Mutant(
        "the port of a round that was missed is offered again",
        on_round._missed,
        "if (seen.master_addr, seen.master_port) == (node.addr, node.port):",
        "if False:",
    ),
    Mutant("the last rank is the master", coordinator._start, "members[0].node", "members[-1].node"),
    # -- when a round may begin
    Mutant("nobody is waited for", Rendezvous.may_have_workers, "if seen.may_have_workers", "if False"),
    Mutant("the dead are waited for", Seen.may_have_workers, "not self.lost and ", ""),
    Mutant("the lost count as waiting", Seen.waiting, "not self.lost and ", ""),
    Mutant("the same round again", coordinator._judge_over, "number = state.number + 1", "number = state.number"),
    # -- why a round ends
    Mutant("a failure of an earlier round ends this one", coordinator._why_over, " and record.round == number", ""),
    Mutant("failures go unnoticed", coordinator._why_over, "if record.failure is not None", "if False"),
    Mutant("a lost member goes unnoticed", coordinator._why_over, "if seen.lost:", "if False:"),
    Mutant(
        "a goodbye goes unnoticed",
        coordinator._why_over,
        "if record.state in (NodeState.LEAVING, NodeState.ENDED):",
        "if False:",
    ),
    Mutant(
        "a place given up goes unnoticed",
        coordinator._why_over,
        "if record.state in (NodeState.STOPPING, NodeState.WAITING)",
        "if False",
    ),
    # -- whose fault it was
    Mutant(
        "nobody is exonerated by a departure",
        charging._final,
        "if departed:",
        "if False:",
    ),
    Mutant(
        "answers are not waited for",
        charging._answer,
        "if record.round < state.number or not (record.all_exits_reported or record.state is NodeState.WAITING):",
        "if False:",
    ),
    Mutant("a lost member did not depart", charging._answer, 'return f"{member.name} was lost"', 'return ""'),
    Mutant("one answer is enough", charging.settle, "if unanswered and not", "if False and not"),
    Mutant("a restart too many", charging.node_out_of_restarts, "restarts_left <= 0", "restarts_left < 0"),
    Mutant("a restart too few", charging.node_out_of_restarts, "restarts_left <= 0", "restarts_left <= 1"),
    Mutant("every node is charged", transitions.costs_us, "ended.charged == rules.node", "bool(ended.charged)"),
    Mutant("nobody is charged", transitions.settle_charge, "if not costs_us(node, rules, ended):", "if True:"),
    Mutant("charged before it is settled", transitions.settle_charge, " or seen.number <= ended.round", ""),
    Mutant(
        "the charge is not looked at while joining",
        on_round.on_round_while_joining,
        "moves.settle_charge(replace(node, latest_round=seen), rules, now, seen)",
        "replace(node, latest_round=seen)",
    ),
    Mutant(
        "the budget is not told", restart_policy.restarts_left, "policy.max_restarts - counted", "policy.max_restarts"
    ),
    Mutant("nothing is ever forgiven", restart_policy.restarts_left, "if policy.window_s else", "if False else"),
    Mutant("a window is too short", restart_policy.restarts_left, "< policy.window_s", "< policy.window_s / 2"),
    Mutant("a crash loop is none", restart_policy.failures_in_a_row, "_in_a_row(history, at, policy.pause_max_s)", "1"),
    Mutant(
        "a pause is too short", restart_policy._pause_s, "return low + (high - low)", "return low / 2 + (high - low)"
    ),
    Mutant(
        "nobody pauses", transitions.rejoin, "if node.paused_until is None or now >= node.paused_until:", "if True:"
    ),
    Mutant("a pause has no end", on_deadline.on_time_while_joining, "if now < node.paused_until:", "if True:"),
    # -- who is alive
    Mutant("an observer that was late judges all the same", leases._unwatched_s, 'return float("inf")', "return 0.0"),
    Mutant("a moment unwatched counts", leases._unwatched_s, "now - seen_at - rules.beat_s", "0.0"),
    Mutant("the lost never come back", leases._aged, "heard_at=now, lost=False)", "heard_at=now)"),
    Mutant("a lease is short", leases._aged, ">= rules.lease_s", ">= rules.lease_s / 4"),
    Mutant("nobody is ever lost", leases._aged, "seen.lost or now - heard_at >= rules.lease_s", "seen.lost"),
    Mutant(
        "the lost are not listened to",
        leases.watched,
        "is not NodeState.ENDED",
        "is not NodeState.ENDED and not seen.lost",
    ),
    # -- how a job ends
    Mutant("one that finished is success", coordinator._judge_running, "if all(", "if any("),
    Mutant(
        "nobody begins the barrier", observations.note_node, "record.finished and state.barrier_until is None", "False"
    ),
    Mutant(
        "the barrier never ends",
        coordinator._judge_running,
        "leases.deadline_confirmed(state, state.barrier_until, now)",
        "False",
    ),
    Mutant(
        "the barrier is short",
        coordinator._judge_running,
        "leases.deadline_confirmed(state, state.barrier_until, now)",
        "leases.deadline_confirmed(state, state.barrier_until and state.barrier_until - 2, now)",
    ),
    Mutant(
        "nobody looks when the barrier ends",
        deadlines.deadline,
        "if (verdict := verdict_at(state, rules)) is not None:",
        "if state.barrier_until is None and (verdict := verdict_at(state, rules)) is not None:",
    ),
    Mutant(
        "the join timeout never comes",
        coordinator._judge_gathering,
        "leases.deadline_confirmed(state, state.since + rules.join_timeout_s, now)",
        "False",
    ),
    Mutant(
        "the join timeout is short",
        coordinator._judge_gathering,
        "state.since + rules.join_timeout_s",
        "state.since + 1.0",
    ),
    Mutant(
        "who hears nothing says who is missing",
        leases.deadline_confirmed,
        " and state.looked_at is not None and state.looked_at >= until",
        "",
    ),
    Mutant("the host waits for the dead", coordinator._deserted, " if not seen.lost", ""),
    Mutant("the host waits for one", coordinator._deserted, "all(", "any("),
    # -- what is said
    Mutant("two words have one version", coordinator._announce, "state.version + 1", "state.version or 1"),
    Mutant(
        "only a change of phase is said",
        coordinator._announce,
        "state.view(state.version, said.because) == said",
        "state.phase is said.phase",
    ),
    Mutant("records are not numbered", transitions.publish, "seq=node.seq + 1", "seq=1"),
    Mutant("a node speaks of an earlier round", transitions.publish, "round=node.round", "round=node.round - 1"),
    # -- what a node does
    Mutant(
        "a round is started twice",
        on_round.on_round_while_joining,
        "seen.number > node.round",
        "seen.number >= node.round",
    ),
    Mutant(
        "a missed round is not told",
        on_round.on_round_while_joining,
        "if passed > node.round and node.place_ready:",
        "if False:",
    ),
    Mutant("what was said meanwhile is forgotten", on_round.on_prepared, "if node.latest_round is None:", "if True:"),
    Mutant("round numbers are not looked at", on_round._still_mine, "seen.number < node.round or (", "False and ("),
    Mutant(
        "closed on a connection error",
        transitions.tolerate_store_outage,
        "until = now + rules.store_grace_s",
        "until = now",
    ),
    Mutant("the store's return is not noted", on_store.on_came_back, "store_lost_until=None", "store_lost_why=''"),
    Mutant(
        "a spare has no patience",
        on_round.on_round_while_joining,
        "until = now + rules.join_timeout_s",
        "until = now + 1.0",
    ),
    Mutant(
        "a spare has patience without end",
        on_deadline.on_time,
        "if node.spare_until is not None and now >= node.spare_until",
        "if False",
    ),
    Mutant("finished with workers still at work", on_workers.on_exited, "if node.running:", "if False:"),
    Mutant("a worker's failure is overlooked", on_workers.on_exited, "if event.failure is not None:", "if False:"),
    Mutant("all that is gone has finished", on_workers.on_gone, "if node.finished:", "if True:"),
    Mutant(
        "a lost nursery is nobody's failure",
        on_workers.on_nursery_lost,
        "node = moves.fail(replace(node, running=frozenset()), rules, now, failure)",
        "pass",
    ),
    Mutant("a lost nursery is charged", charges, "failure.sign is not Sign.HOST", "True"),
    Mutant("one lost nursery is enough", restart_policy.is_sick, ">= SICK_AFTER", ">= 1"),
    Mutant("a node that leaves comes back", transitions.stop, "verdict=verdict", "verdict=None"),
    Mutant("nobody is killed", transitions.climb, "KillWorkers(),", ""),
    Mutant("the ladder has no end", Ladder.climb, "replace(self, rung=Rung.GIVEN_UP)", "replace(self, until=now + 10)"),
    Mutant("the host leaves first", on_store.on_written, "if node.hosting and not node.others_ended:", "if False:"),
    Mutant(
        "the host leaves when a call breaks", on_store.on_went_away_while_ending, "if not node.hosting:", "if True:"
    ),
    Mutant("the host does not wait for its last word", on_deadline._serve_on, "now < lost", "now < 0"),
    Mutant("finished nodes share the blame", verdicts.of_closed, "if node.finished:", "if False:"),
    Mutant("whatever happens is fine", verdicts.of_closed, "STATUS[outcome]", "OK"),
    Mutant("a lost store is a failed worker", verdicts.of_store_lost, "STORE_LOST", "WORKER_FAILED"),
    # -- drivers
    Mutant("an empty store is taken for the old one", keys.check, "if token and life != token:", "if False:"),
    Mutant("a broken session is used again", Connection.call, "self._session = None", "pass"),
    Mutant("the store's return is not told", CallGuard.answered, "if was_away:", "if False:"),
    Mutant("the store's absence is not told", CallGuard.broke, "if first:", "if False:"),
    Mutant("a call may take for ever", CallGuard.begin, "CALL_LIMIT_S", "1000 * CALL_LIMIT_S"),
    Mutant("a heartbeat stands still", Driver._write, "count += 1", "count = 1"),
    Mutant("what was written is not told", Driver._put, "self._listener.record_written(record.seq)", "pass"),
    Mutant(
        "a record is written once, come what may",
        Connection.call,
        "while not self._closing.is_set():",
        "for _ in range(1):",
    ),
    Mutant("the watcher forgets where it was", Driver._watch, "self._seen, value = found", "_, value = found"),
    Mutant("heartbeats that were read are kept back", Term._look, "if counts is not None:", "if False:"),
    Mutant(
        "a notification that is void stays so",
        notifications.Notice.give,
        "if wire.create(keys.note(note), name) == name:",
        "if wire.add(keys.log_head, 0):",
    ),
    Mutant("a notification is skipped", c10d.C10dStore.wait_nodes, "return upto, fresh", "return upto + 1, fresh"),
    Mutant("an announcement is not headed", c10d.C10dStore.announce, "if version > newest:", "if False:"),
    Mutant(
        "only the first announcement is read",
        c10d.C10dStore.wait_round,
        "key = self._keys.round(newest)",
        "key = self._keys.round(1)",
    ),
    Mutant(
        "an announcement said again is refused",
        c10d.C10dStore.announce,
        "if holds != value:",
        "if holds != value or version <= newest:",
    ),
    Mutant("overtaken words are heard", Inbox.round_seen, "self.newest = seen.version", "self.newest = 0"),
    # -- tables
    Misplaced(
        "the close goes unheard when finished",
        agent.TRANSITIONS,
        (Phase.FINISHED, agent_events.RoundSeen),
        agent.ignore,
    ),
    Misplaced(
        "rounds go unheard when working", agent.TRANSITIONS, (Phase.WORKING, agent_events.RoundSeen), agent.ignore
    ),
    Misplaced(
        "nobody notices that workers are gone",
        agent.TRANSITIONS,
        (Phase.STOPPING, agent_events.WorkersGone),
        agent.ignore,
    ),
    Misplaced("signals go unheard", agent.TRANSITIONS, (Phase.WORKING, agent_events.SignalReceived), agent.ignore),
    Misplaced(
        "a wake-up while stopping is ignored",
        agent.TRANSITIONS,
        (Phase.STOPPING, agent_events.DeadlineReached),
        agent.ignore,
    ),
    Misplaced(
        "a stale wake-up is honoured",
        agent.TRANSITIONS,
        (Phase.ENDING, agent_events.DeadlineReached),
        on_request.on_at_once,
    ),
    Misplaced(
        "the coordinator's wake-ups are ignored when gathering",
        coordinator._JUDGES,
        coordinator.LAST_CALL,
        coordinator._judge_gathering,
    ),
    Mutant("a successor forgets a charge", takeover._resume, "ended=unsettled or _settled(word)", "ended=unsettled"),
    Mutant("a successor takes an ending for settled", takeover._resume, "settled=unsettled is None", "settled=True"),
    Mutant("a successor begins another round", takeover._resume, "number=word.number", "number=word.number + 1"),
    Mutant(
        "a successor says a version again",
        takeover._resume,
        "version=max(word.version, event.version)",
        "version=word.version - 1",
    ),
    Mutant("a successor forgets the members", takeover._resume, "members=word.members,", "members=(),"),
    Mutant("a successor trusts the silent", takeover._nodes, "begun if node in members else others", "0"),
    Mutant("a successor has its predecessor's epoch", takeover._resume, "epoch=event.epoch", "epoch=word.epoch"),
    Mutant("the job's record goes unread", inbound._outcome, "return now.outcome", "return None"),
    Mutant("leases end while the store stands still", leases.age, "seen.steady_s >= rules.lease_s", "True"),
    Mutant("no lease ever ends", leases._held, "replace(seen, lost=True) if steady else seen", "seen"),
    Mutant("who has a lease again stays lost", leases._held, "heard_at=now, lost=False", "heard_at=now"),
    Mutant("a deposed coordinator ends its agent", Term._obey, "if not self._store.elects or", "if True or"),
    Mutant("nobody stands for coordinator", Driver._begin_others, "elif store.elects:", "elif False:"),
)
