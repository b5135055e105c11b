"""The bugs that are planted: each is found by an invariant, or listed in escapes.py with the reason why not."""

from __future__ import annotations

from elastic_agent.agent import exit_status
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
from elastic_agent.agent.lifecycle.events import KillWorkers
from elastic_agent.agent.lifecycle.state import Node, Phase
from elastic_agent.agent.lifecycle.stop_ladder import Ladder
from elastic_agent.rendezvous import failures
from elastic_agent.rendezvous.c10d import keys as c10d_keys
from elastic_agent.rendezvous.c10d import notifications
from elastic_agent.rendezvous.c10d import store as c10d
from elastic_agent.rendezvous.c10d.keys import Keys
from elastic_agent.rendezvous.coordinator import charging, deadlines, leases, observations, ranks, standing, takeover
from elastic_agent.rendezvous.coordinator import machine as coordinator
from elastic_agent.rendezvous.coordinator.nodes import Seen
from elastic_agent.rendezvous.coordinator.state import Placement, Rendezvous, RoundEnd
from elastic_agent.rendezvous.driver import events as store_events
from elastic_agent.rendezvous.driver import health, inbound
from elastic_agent.rendezvous.driver.connection import CallGuard, Connection
from elastic_agent.rendezvous.driver.driver import Driver
from elastic_agent.rendezvous.driver.outbound import Outbound
from elastic_agent.rendezvous.driver.term import Term
from elastic_agent.rendezvous.driver.threads import Heart
from elastic_agent.rendezvous.etcd.election import Election
from elastic_agent.rendezvous.records import NodeRecord, Round, RoundPhase

from .asked import ASKED
from .connections import CONNECTIONS
from .planting import Misplaced, Mutant
from .syntax import (
    ITSELF,
    UNUSED,
    assignment,
    both,
    branch,
    call,
    choice,
    comparison,
    condition,
    each_with_each,
    either,
    fields,
    given,
    looped,
    negated,
    operation,
    parameter,
    plus,
    returned,
    same,
    subscript,
)
from .worlds import WORLDS

NODE = fields(Node)
RECORD = fields(NodeRecord)
RENDEZVOUS = fields(Rendezvous)
PLACEMENT = fields(Placement)
END = fields(RoundEnd)
ROUND = fields(Round)
SEEN = fields(Seen)
MUTANTS: tuple[Mutant | Misplaced, ...] = (
    # -- who is in a round
    Mutant(
        "min_nodes is forgotten after the first round",
        coordinator._judge_gathering,
        branch(3).comparison(1).operand(1).becomes(1),
    ),
    Mutant("last call goes on below min_nodes", coordinator._judge_last_call, branch(1).never()),
    Mutant("last call never ends", coordinator._judge_last_call, branch(5).never()),
    Mutant("max_nodes is forgotten", ranks.choose, subscript(0).becomes(ITSELF.operand(0))),
    Mutant("newcomers go first", ranks.choose, operation(0).swapped()),
    Mutant("rank offsets count nodes", ranks.assign, assignment(7).value.becomes(1)),
    Mutant("a full round is ended by an arrival", coordinator._arrival, branch(0).comparison(0).operator("<")),
    Mutant("an arrival ends a round that is finishing", coordinator._arrival, branch(0).operand(1).removed()),
    Mutant("arrivals are never settled", deadlines.arrivals_settled, returned(0).plus(1000)),
    Mutant("the place of a node is forgotten", observations._observe_record, given(SEEN.placed).becomes(0)),
    Mutant(
        "the old master port is used again",
        coordinator._start,
        call(Placement)
        .argument(2)
        .becomes(either(parameter(0).attribute(RENDEZVOUS.placement).attribute(PLACEMENT.master_port), ITSELF)),
    ),
    Mutant(
        "the port of a round that was missed is offered again",
        on_round._missed,
        branch(0).never(),
    ),
    Mutant("the last rank is the master", coordinator._start, subscript(1).operand(1).becomes(-1)),
    Mutant("a dead claimant of a static rank counts", coordinator._start, branch(0).always()),
    Mutant("claimants of a static rank are waited for without end", coordinator._start, branch(0).never()),
    # -- when a round may begin
    Mutant("no node is waited for", Seen.may_have_workers, returned(0).never()),
    Mutant("lost nodes are waited for", Seen.may_have_workers, returned(0).operand(0).removed()),
    Mutant("lost nodes count as waiting", Seen.waiting, returned(0).operand(0).removed()),
    Mutant("the same round again", coordinator._judge_over, operation(1).operand(1).removed()),
    # -- why a round ends
    Mutant("a failure of an earlier round ends this one", coordinator._why_over, branch(0).operand(1).removed()),
    Mutant("failures go unnoticed", coordinator._why_over, branch(0).never()),
    Mutant("a lost member goes unnoticed", coordinator._why_over, branch(3).never()),
    Mutant(
        "a departure goes unnoticed",
        coordinator._why_over,
        branch(4).never(),
    ),
    Mutant(
        "a place given up goes unnoticed",
        coordinator._why_over,
        branch(5).never(),
    ),
    # -- which node is charged
    Mutant(
        "a departure excuses no failure",
        charging._final,
        branch(2).never(),
    ),
    Mutant(
        "reports of members are not waited for",
        charging._answer,
        branch(3).never(),
    ),
    Mutant("a lost member counts as no departure", charging._answer, returned(1).becomes("")),
    Mutant(
        "a certain cause does not wait for who has not reported the round",
        charging._needs_no_more,
        comparison(1).becomes(True),
    ),
    Mutant("one report is enough", charging.settle, branch(3).never()),
    Mutant("all exits of a round are announced", charging._kept, subscript(0).becomes(ITSELF.operand(0))),
    Mutant("a restart too many", charging.node_out_of_restarts, branch(0).comparison(0).operator("<")),
    Mutant("a restart too few", charging.node_out_of_restarts, branch(0).comparison(0).operand(1).becomes(1)),
    Mutant("every node is charged", transitions.costs_us, returned(0).operand(0).becomes(ITSELF.operand(0))),
    Mutant("no node is charged", transitions.settle_charge, branch(1).always()),
    Mutant("charged before it is settled", transitions.settle_charge, branch(0).operand(2).removed()),
    Mutant(
        "the charge is not looked at while joining",
        on_round.on_round_while_joining,
        call(transitions.settle_charge).becomes(ITSELF.argument(0)),
    ),
    Mutant("a node that was lost keeps a restart that it does not have", transitions.settle_charge, branch(2).never()),
    Mutant("the budget ignores charges", restart_policy.restarts_left, returned(0).operation(0).operand(1).removed()),
    Mutant("no charge is ever forgiven", restart_policy.restarts_left, choice(0).never()),
    Mutant("a window is too short", restart_policy.restarts_left, comparison(0).operand(1).times(0.5)),
    Mutant("a crash loop is never recognised", restart_policy.failures_in_a_row, returned(0).becomes(1)),
    Mutant("a pause is too short", restart_policy._pause_s, returned(-1).operand(0).times(0.5)),
    Mutant("no crash loop pauses", transitions.rejoin, branch(1).always()),
    Mutant("a pause has no end", on_deadline.on_time_while_joining, branch(1).always()),
    Mutant(
        "all exits are compared with each other at each event",
        charging._needs_no_more,
        returned(0)
        .operand(0)
        .becomes(
            both(each_with_each(parameter(0).attribute(RENDEZVOUS.placement).attribute(PLACEMENT.deaths)), ITSELF)
        ),
        slow=True,
    ),
    # -- which nodes are lost
    Mutant("the time before a late reading counts as silence", leases._unwatched_s, returned(0).becomes(0.0)),
    Mutant("the time between two readings counts as silence", leases._unwatched_s, returned(1).becomes(0.0)),
    Mutant("a lost node never returns", leases._aged, given(SEEN.lost).removed()),
    Mutant("a lease is short", leases._aged, assignment(6).value.comparison(0).operand(1).times(0.25)),
    Mutant("no node is ever lost", leases._aged, assignment(6).value.operand(1).removed()),
    Mutant(
        "heartbeats of lost nodes are not read",
        leases.watched,
        condition(0).becomes(both(ITSELF, negated(looped(0).element(1).attribute(SEEN.lost)))),
    ),
    # -- how a job ends
    Mutant("one finished node is success", coordinator._judge_running, branch(5).calls(any)),
    Mutant("the barrier never begins", observations._observe_record, branch(1).never()),
    Mutant(
        "the barrier never ends",
        coordinator._judge_running,
        branch(8).never(),
    ),
    Mutant(
        "the barrier is short",
        coordinator._judge_running,
        call(leases.deadline_confirmed).argument(1).becomes(both(ITSELF, plus(ITSELF, -2))),
    ),
    Mutant(
        "no wake-up comes when the barrier ends",
        deadlines.deadline,
        branch(1).becomes(both(negated(parameter(0).attribute(RENDEZVOUS.barrier_until)), ITSELF)),
    ),
    Mutant(
        "the join timeout never comes",
        coordinator._judge_gathering,
        branch(6).never(),
    ),
    Mutant(
        "the join timeout is short",
        coordinator._judge_gathering,
        branch(6).operation(0).operand(1).becomes(1.0),
    ),
    Mutant(
        "a coordinator that receives nothing decides who is missing",
        leases.deadline_confirmed,
        returned(1).becomes(ITSELF.operand(0)),
    ),
    Mutant("the host waits for lost nodes", Seen.dead, returned(0).operand(0).removed()),
    Mutant("the host waits for no node", coordinator._watch, branch(2).operand(1).removed()),
    # -- what is announced
    Mutant("two announcements have one version", coordinator._announce, operation(0).operator("or")),
    Mutant(
        "only a change of phase is announced",
        deadlines.may_wait,
        branch(0)
        .operand(1)
        .becomes(same(parameter(2).attribute(ROUND.phase), ITSELF.operand(1).attribute(ROUND.phase))),
    ),
    Mutant("records are not numbered", transitions.publish, given(RECORD.seq).becomes(1)),
    Mutant("a node reports an earlier round", transitions.publish, given(RECORD.round).plus(-1)),
    # -- what a node does
    Mutant(
        "a round is started twice",
        on_round.on_round_while_joining,
        branch(2).operand(2).operator(">="),
    ),
    Mutant(
        "a missed round is not handled",
        on_round.on_round_while_joining,
        branch(4).never(),
    ),
    Mutant("an announcement received while preparing is forgotten", on_round.on_prepared, branch(0).never()),
    Mutant("round numbers are ignored", on_round._still_in, returned(0).becomes(False)),
    Mutant("closed on a connection error", transitions.tolerate_store_outage, assignment(0).value.operand(1).removed()),
    Mutant(
        "the store's return is ignored", on_store.on_came_back, call(on_store.answering).becomes(ITSELF.argument(0))
    ),
    Mutant(
        "a spare gives up at once",
        on_round.on_round_while_joining,
        operation(0).operand(1).becomes(1.0),
    ),
    Mutant(
        "a spare never gives up",
        on_deadline.on_time,
        branch(2).never(),
    ),
    Mutant("finished with workers still at work", on_workers.on_exited, branch(2).never()),
    Mutant("a worker's failure is overlooked", on_workers.on_exited, branch(0).never()),
    Mutant("workers that are gone count as finished", on_workers.on_workers_gone, branch(3).always()),
    Mutant(
        "a lost nursery is no failure",
        on_workers.on_nursery_lost,
        call(transitions.fail).becomes(parameter(0)),
    ),
    Mutant("a lost nursery is charged", failures.charges, returned(0).operand(1).always()),
    Mutant("one lost nursery is enough", restart_policy.host_keeps_failing, returned(0).operand(1).becomes(1)),
    Mutant("a node that leaves comes back", transitions.stop, given(NODE.verdict).becomes(None)),
    Mutant("workers are never killed", transitions.climb, call(KillWorkers).removed()),
    Mutant("the stop ladder has no end", Ladder.climb, returned(-1).becomes(returned(-2))),
    Mutant("the host leaves first", on_store.on_written, branch(1).never()),
    Mutant("the host leaves when a call breaks", on_store.on_went_away_while_ending, branch(0).always()),
    Mutant("the host does not wait for its last record", on_deadline._serve_on, branch(1).never()),
    Mutant("finished nodes share the failure", verdicts.of_closed, branch(1).never()),
    Mutant("every outcome exits 0", verdicts.of_closed, subscript(1).becomes(exit_status.OK)),
    Mutant(
        "a lost store exits like a failed worker",
        verdicts.of_store_lost,
        returned(2).argument(0).becomes(exit_status.WORKER_FAILED),
    ),
    # -- drivers
    Mutant("an empty store is taken for the old one", c10d_keys.verify, branch(4).never()),
    Mutant("a broken session is used again", Connection._repeat, assignment(1).removed()),
    Mutant("the store's return is not reported", CallGuard.answered, branch(0).never()),
    Mutant("the store's absence is not reported", CallGuard.broke, branch(0).never()),
    Mutant("a call may take for ever", CallGuard.begin, operation(0).operand(1).times(1000)),
    Mutant("a heartbeat stands still", Heart.beat, assignment(3).operator("=")),
    Mutant("a refused record starves the heartbeat", Connection._repeat, branch(1).never()),
    Mutant("a written record is not reported", Outbound.write, call(-2).removed()),
    Mutant(
        "a record is written once, come what may",
        Connection._repeat,
        branch(0).once(),
    ),
    Mutant("the watcher forgets where it was", Driver._run_watcher, assignment(7).target.becomes(UNUSED)),
    Mutant("a reading of heartbeats is not reported", Term._report_beats, branch(0).never()),
    Mutant("the log of notifications is never compacted", notifications.Compaction.run, branch(1).always()),
    Mutant("a void notification is kept", notifications.Published.publish, branch(3).always()),
    Mutant("a notification stays overwritten", notifications.Published.restore, branch(0).operand(0).removed()),
    Mutant("a record stays overwritten", notifications.Published.restore, branch(0).operand(1).removed()),
    Mutant("a connection stays open for nothing", Driver._run_writer, call(Connection.begin_on).removed()),
    Mutant("a notification is skipped", c10d.C10dStore.wait_nodes, returned(0).element(0).plus(1)),
    Mutant("the counter of rounds is not advanced", c10d.C10dStore.announce, branch(1).never()),
    Mutant(
        "only the first announcement is read",
        c10d.C10dStore._newest_round,
        call(Keys.round).argument(0).becomes(1),
    ),
    Mutant(
        "an announcement sent again is refused",
        c10d.C10dStore.announce,
        branch(0).becomes(either(ITSELF, negated(choice(0)))),
    ),
    Mutant("overtaken announcements are handled", store_events.overtaken, returned(0).becomes(False)),
    # -- nodes that live but do not do their part
    Mutant("a heartbeat says nothing of the loop", Driver._does_its_part, branch(0).operand(0).removed()),
    Mutant("a heartbeat says nothing of what is received", health.Health.why_not_receiving, branch(0).never()),
    Mutant("a coordinator that stands still keeps its term", Driver._does_its_part, branch(1).never()),
    Mutant("a node that stands still stands for coordinator", Driver._campaign, choice(0).always()),
    Mutant("nobody looks at the host's heartbeat", health.Health.host_stands, returned(0).becomes(False)),
    Mutant("a thread without answers goes unnoticed", health.Health._is_overdue, returned(0).becomes(False)),
    Mutant("a report has no time limit", deadlines.report_due, returned(1).becomes(None)),
    # -- tables
    Misplaced(
        "a finished node ignores the close",
        agent.TRANSITIONS,
        (Phase.FINISHED, store_events.RoundSeen),
        agent.ignore,
    ),
    Misplaced(
        "a working node ignores rounds", agent.TRANSITIONS, (Phase.WORKING, store_events.RoundSeen), agent.ignore
    ),
    Misplaced(
        "a stopping node ignores that its workers are gone",
        agent.TRANSITIONS,
        (Phase.STOPPING, agent_events.WorkersGone),
        agent.ignore,
    ),
    Misplaced(
        "a working node ignores signals", agent.TRANSITIONS, (Phase.WORKING, agent_events.SignalReceived), agent.ignore
    ),
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
        on_request.on_signal_while_ending,
    ),
    Misplaced(
        "the coordinator's wake-ups are ignored when gathering",
        coordinator._JUDGES,
        RoundPhase.LAST_CALL,
        coordinator._judge_gathering,
    ),
    Mutant("a successor forgets a charge", takeover._resume, given(END.ending).operand(1).removed()),
    Mutant("a successor takes an ending for settled", takeover._resume, given(END.settled).always()),
    Mutant("a successor begins another round", takeover._resume, given(RENDEZVOUS.number).plus(1)),
    Mutant(
        "a successor uses a version again",
        takeover._resume,
        given(RENDEZVOUS.version).becomes(plus(ITSELF.argument(0), -1)),
    ),
    Mutant("a successor forgets the members", takeover._resume, call(Placement).argument(0).becomes(())),
    Mutant(
        "a successor forgets in which round a node was",
        takeover._nodes,
        call(takeover._seen).argument(2).becomes(0),
    ),
    Mutant(
        "a successor has its predecessor's epoch",
        takeover._resume,
        given(RENDEZVOUS.epoch).becomes(parameter(0).attribute(ROUND.epoch)),
    ),
    Mutant("a rerun inherits what the dead finished", standing.reviewed, branch(1).never()),
    Mutant("a node that has ended stands for its run", Seen.dead, returned(0).operand(1).removed()),
    Mutant("a rerun inherits the barrier", standing._begin_again, given(RENDEZVOUS.barrier_until).removed()),
    Mutant("a rerun decides before it is known who is alive", standing.allows, returned(0).always()),
    Mutant("the doubt of a rerun has no end", standing.reviewed, branch(2).never()),
    Mutant(
        "a node keeps the page of an earlier membership",
        inbound.OwnPlace.read,
        branch(1).operand(1).removed(),
    ),
    Mutant("a successor knows no member on a page", inbound.with_all_members, branch(0).always()),
    Mutant("the job's outcome goes unread", inbound._recorded_outcome, returned(0).becomes(None)),
    Mutant("leases end while the store stands still", leases.age, call(leases._held).argument(-1).always()),
    Mutant("no lease ever ends", leases._held, choice(1).never()),
    Mutant("a node with a new lease stays lost", leases._held, given(SEEN.lost).removed()),
    Mutant("a deposed coordinator ends its agent", Term._run_announcer, branch(-1).always()),
    Mutant("a follower writes at each wait", Election.campaign, branch(1).always()),
    Mutant("no node stands for coordinator", Driver._start_threads, branch(2).never()),
    *ASKED,
    *CONNECTIONS,
    *WORLDS,
)
