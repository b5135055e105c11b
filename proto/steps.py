"""The page that an agent shares with its workers, in which they agree on a step boundary: its layout.

The agent names it in each worker's environment, by `VARIABLE`: five numbers with spaces between. The agent's process
id; its descriptors of the page, of a pipe that takes a byte whenever a worker has changed its slot, and of a pipe that
gets a byte whenever the agent has changed the common words; and the worker's slot. Other processes open a descriptor as
/proc/PID/fd/NUMBER.

The page consists of words of 64 bits in the order of the host's bytes. The common ones, which only the agent writes,
are followed by the label, and from `SLOTS_AT` on by a slot for each worker, which only that worker writes.
"""

from __future__ import annotations

from typing import NamedTuple

VARIABLE = "ELASTIC_AGENT_STEPS"
WORD_BYTES = 8

ASKED = 0
"""Common: number of the newest agreement. A worker that finds one it does not know waits until it is decided."""
DECIDED = 1
"""Number of the newest agreement that is decided; written after `AT`, `ACTS` and the label."""
AT = 2
"""The boundary at which workers act on it; 0: at none, it was given up."""
ACTS = 3
"""What they do: a sum of `SAVE`, `STOP` and `HOLD`."""
RELEASED = 4
"""Number of the newest agreement behind which no worker waits any more."""
LABEL_BYTES = 5
"""Length of the label in UTF-8."""
REACHED = 6
"""The highest step that a worker of this node did in an earlier round: up to it, steps are repeated."""

LABEL_AT = 64
"""Where the label begins, in bytes."""
SLOTS_AT = 512
"""Where the slots begin, in bytes; a slot is two cache lines, which no two processes write."""
SLOT_BYTES = 128

ATTACHED = 0
"""Of a slot: the worker's process id once it has made a Run."""
BOUNDARY = 1
"""The last boundary that it has come to; written before it reads `ASKED` there."""
NEWEST_READ = 2
"""Number of the newest decided agreement that it knows."""
ACTED = 3
"""Number of the newest agreement that it has acted on."""

STEPS = 4
"""Number of the last step that the run has done."""
DOING = 5
"""What goes on since the times below were written: `IN_STEP`, `IN_SAVE`, `IN_PAUSE`, or `AFTER`, behind the loop."""
SAVED = 6
"""The step of the newest checkpoint that this process has taken."""
WRITTEN_BYTES = 7
"""The size of the newest checkpoint that this process has brought to the disk; 0: it has brought none."""
BEGAN_NS = 8
"""When the Run was made. This and what follows: nanoseconds, of CLOCK_MONOTONIC."""
LAST_NS = 9
"""Up to when the four sums below account for the time since `BEGAN_NS`."""
USEFUL_NS, REPEATED_NS, SAVING_NS, PAUSED_NS = 10, 11, 12, 13
"""How long it did steps for the first time, did steps again, stood still for checkpoints, waited for its program."""
WORDS = SLOT_BYTES // WORD_BYTES

IN_STEP, IN_SAVE, IN_PAUSE, AFTER = 0, 1, 2, 3

SAVE, STOP, HOLD = 1, 2, 4
"""Make a checkpoint; leave the loop behind it; wait behind it until it is released or the process is stopped."""


class Place(NamedTuple):
    """Where a worker finds its page."""

    pid: int
    page: int
    reports: int
    changes: int
    slot: int


def size(slots: int) -> int:
    """Bytes of a page with so many slots."""
    return SLOTS_AT + slots * SLOT_BYTES


def slot_at(slot: int, word: int) -> int:
    """Where a word of a slot begins, in bytes."""
    return SLOTS_AT + slot * SLOT_BYTES + word * WORD_BYTES


def to_variable(place: Place) -> str:
    return " ".join(map(str, place))


def from_variable(text: str) -> Place:
    """Raises ValueError."""
    return Place(*map(int, text.split()))
