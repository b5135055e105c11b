"""What must hold, each in one sentence, with which the report of a violation begins.

S1-S14 (nothing bad ever happens, checked after every event) and L1-L9 (something good happens in time, once faults
stop) are the two lists of properties in the protocol's design; `ANSWERS` has the sentences that stand for each.
"""

from __future__ import annotations

AGREED = "all nodes that start a round hold the same members, ranks and master"
DENSE = "ranks are 0 to W-1, each given once, in the order of the nodes"
SIZED = "a round has at least min_nodes and at most max_nodes"
EMPTY = "no worker of an earlier round lives on a node that starts the next"
FENCED = (
    "no round begins while a live node has workers of an earlier one, or may yet start them, unless the node was lost "
    "when the coordinator decided so"
)
ONE_WORLD = (
    "behind drivers, no worker of one round runs beside a worker of another, whatever is cut, frozen or suspended"
)
FORWARD = "round numbers and versions never go back"
FINAL = "a closed rendezvous stays closed, with the same outcome"
TRUTHFUL = "exit status 0 means that this node's workers all exited 0, or that it was a spare of a job that succeeded"
CODED = "the exit status is the one that docs/exit-codes.md gives to what happened"
CHARGED = "only a node whose own worker failed in the round is charged, and never for a change of membership"
BLAMED = "a round ends by a departure only when a member of it was asked to stop, died, gave up or was lost"
COUNTED = "a node has used exactly the restarts that were charged to it, without one whose announcement it missed"
PACED = (
    "a crash loop pauses: after a second failure in a row a node starts no workers before the shortest pause is over"
)
UNDISTURBED = "a round that is full, or whose first nodes have finished, is not ended by an arrival"
LISTED = (
    "workers are stopped only for a reason: own failure, end of the round, close, a request, the store lost, leftovers"
)
SUCCESS = "a job succeeds only when all workers of every member of its last round exited 0"
ENDED_ALONE = "a node whose last restart is spent ends the job, or itself alone where the others had taken it for lost"
SPENT = "a job fails only when a budget is spent, a worker forbids a restart, or too few remain once some have finished"
TIMELY = "gathering times out only when fewer than min_nodes are there"
CLASHING = (
    "a job is misconfigured only when two nodes that lived at one time claim one static rank, or a node that was alive "
    "of late claims one that does not exist"
)
SAVED_FIRST = "before an arrival ends a round its workers have saved, cannot, or take too long"
ASKED_FOR = "a job is preempted or killed only when a worker of its last round, or a node, asked for that"
DESERTED = "a job is abandoned only when no node that could go on is left, or too few places for a round are"
ALIVE = "a job neither succeeds nor fails by a round of which no node was alive when it was started again"
PATIENT = "the finalisation barrier ends no earlier than its length after the first node finished"
HOSTED = (
    "the host serves the store until every other node has ended or is lost, and then clears up, unless it receives "
    "another signal, or has been without the store itself for store_grace"
)
LEFT_NO_WORKER = "an agent ends with no worker left, except those that it reports as not ended by SIGKILL"
COUNTED_IN = "a node that runs and reaches the store is not lost for long"
BOUNDED = "the number of rounds is bounded by what happened"
ENDING = "once faults stop and no worker fails any more, every agent ends in time"
ANNOUNCED = "a node receives what the coordinator announced, each version once, and an announcement never changes"
MISTAKEN = "a new, empty store is not taken for the old one: a node that was on the old one writes nothing to it"
PLACED = "a node starts a round only when the coordinator announced that it runs and that the node has a place in it"
EVICTED = (
    "a node is lost only when it was silent for a lease by its own fault, or reported nothing for longer than it may: "
    "a frozen store evicts no node"
)
NEWEST = "what a node receives is the newest announcement, but for those made while it read"
OVERTAKEN = "an agent acts on no announcement that a newer one has overtaken on its way"
ENDS_PROMPTLY = "an agent whose last record is written ends at once, unless it serves the store or clears it up"
VOUCHED = "a node whose loop stands still, or that does not receive what is announced, soon sends no heartbeat"
RESIGNED = "a coordinator whose loop stands still, or that receives nothing, soon coordinates no more"
LED = "a node whose coordinator stands still on the store that it hosts ends within store_grace and a little more"
ANSWERED = "a round that is over does not wait for ever: a node that reports nothing is lost"
DEPARTED = "once faults stop, a round that a member has left is over soon"
STOPPED = "stopping workers takes no longer than the grace, what SIGKILL gets, and a little more"
CHEAP = "a coordinator's events take processor time in proportion to the nodes, not to their square"
SMALL = "a record and an announcement have a few kilobytes, whatever the number of nodes"
LIVELY = "no job repeats itself without time passing"
DRAINED = "the events of a finished job run out"
BEGUN = "once faults stop, a round begins soon when enough nodes wait for one and no node still stops workers"
PROMOTED = "once faults stop, nodes that wait get places soon when the running round has room"
INFORMED = "once faults stop, a node whose round is over receives that soon"
PROMPT = "once the rendezvous is closed, every node that reaches the store ends within its grace and a little more"
IMPATIENT = "a spare gives up when the join timeout is over"
BARRED = "the finalisation barrier ends no later than its length and a little more after the first node finished"
FRESH = "every round has a master of its own: the port that group rank 0 prepared for it, and no earlier round had"
RETURNED = "no new node takes the place of a member of the last round that is ready to return"
OBEYED = "a node that is asked to stop ends within its workers' grace and a little more"
KEPT = "a node whose workers all exited 0 exits 0, however the others end"
STUCK = "a node gives up only on workers that SIGKILL had not ended when the time for it was over"
UNHURRIED = "gathering times out no earlier than the join timeout"
GIVEN_UP = "a node that lost the store ends within store_grace, its workers' grace and a little more"
ONE_STEP = "all ranks act on an agreement at one step, which none of them has passed"
ALL_ACTED = "an agreement is over when all ranks have acted, a worker has no steps, or they take too long"
ACTED_UPON = "what a node asks of all ranks is done or refused, with a reason, in time while the store answers"
SAVED_ONCE = "all ranks save once for each request"
REPEATS_NOTHING = "no step is repeated behind a planned end of a round"
ONE_STATUS = (
    "behind a kill switch every agent ends with 83, and behind a preemption of the job with 75, but for those that "
    "were asked to stop, or could not go on, themselves"
)
COMPACT = "what the host has read of the log of notifications is compacted: its length does not grow with the job"
PEACEFUL = "a node writes that it stands for coordinator only where it has read that nobody coordinates"
FRUGAL = "a node holds two connections to the store at most, and the host four"

ANSWERS = {
    "S1": (AGREED, FRESH),
    "S2": (DENSE,),
    "S3": (SIZED, PLACED),
    "S4": (FENCED, EMPTY, ONE_WORLD),
    "S5": (FORWARD, MISTAKEN),
    "S6": (FINAL, SPENT, ENDED_ALONE, TIMELY, UNHURRIED, CLASHING, DESERTED, ALIVE),
    "S7": (TRUTHFUL, SUCCESS, CODED, KEPT, STUCK),
    "S8": (EVICTED, VOUCHED),
    "S9": (CHARGED, BLAMED, COUNTED, PACED, UNDISTURBED, RETURNED),
    "S10": (LISTED,),
    "S11": (ANNOUNCED,),
    "S12": (ANNOUNCED, OVERTAKEN),
    "S13": (ANNOUNCED, CODED, ENDING),
    "S14": (CODED, ENDING),
    "L1": (BEGUN,),
    "L2": (BEGUN, INFORMED, DEPARTED, ANSWERED, RESIGNED),
    "L3": (PROMPT, BARRED, OBEYED, STOPPED, ENDS_PROMPTLY),
    "L4": (PROMOTED, IMPATIENT, PROMPT),
    "L5": (BEGUN, BOUNDED, CHEAP, SMALL),
    "L6": (INFORMED, NEWEST, COUNTED_IN),
    "L7": (LISTED, GIVEN_UP, COUNTED_IN, LED),
    "L8": (BOUNDED, LIVELY),
    "L9": (DRAINED, ENDING, FRUGAL, COMPACT, PEACEFUL),
}
"""They differ where the protocol does: each node has its own budget (S9), nodes do not acknowledge a round before it
starts, but report that they stopped before the next (S3, S4), and the host ends last (L3). S13, foreign bytes, means
here that agents end, with a true status; their messages are tested in `tests/integration/bad_input`."""
