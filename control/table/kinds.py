"""Which kinds of watches there are: for each its keys, the forms of its threshold, and what to do when it fires."""

from __future__ import annotations

from ...proto.frozen import dataclass
from .quantities import SIDES, Dimension, quantity

LEARNED = "learned"
"""A threshold that follows from the job's own times."""


@dataclass(frozen=True)
class Form:
    """One way to write a threshold."""

    dimension: Dimension
    side: str
    """`used`, `free`, `left` or nothing."""
    example: str


@dataclass(frozen=True)
class Threshold:
    """A threshold as it was read."""

    value: float
    """In the unit of its dimension."""
    dimension: Dimension
    side: str
    text: str
    """As it was written."""


@dataclass(frozen=True)
class Kind:
    """What a watch of this kind needs and takes."""

    forms: tuple[Form, ...]
    """Empty: it has no threshold."""
    needs: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()
    """At least one of these keys is needed."""
    takes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    """Thresholds that are words."""
    default: str = ""
    """The threshold where none is given; empty: it must be given."""
    every: str = ""
    """How often it looks where nothing is said; empty: as most do."""
    whole_job: bool = False
    """It is about the job, not about a node: one node of the job is enough."""
    next_step: str = ""
    """What somebody who was just woken does about it."""

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.needs, *self.one_of, *self.takes)

    def threshold(self, text: str) -> Threshold | None:
        """The threshold, or None if the text is in none of the forms."""
        if text.strip().lower() in self.words:
            return Threshold(0.0, Dimension.COUNT, text.strip().lower(), text)
        found = quantity(text)
        if found is None or found[2] not in ("", *SIDES):
            return None
        value, dimension, side = found
        if dimension is Dimension.PERCENT and value > 100:
            return None
        if any((form.dimension, form.side) == (dimension, side) for form in self.forms):
            return Threshold(value, dimension, side, text)
        return None

    def allowed(self) -> str:
        """The forms, for an error."""
        shown = [repr(form.example) for form in self.forms] + [repr(word) for word in self.words]
        return " or ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


_USED = Form(Dimension.PERCENT, "used", "90 % used")
_FREE = Form(Dimension.PERCENT, "free", "10 % free")
_BYTES_FREE = Form(Dimension.SIZE, "free", "200 GB free")
_HOURS_LEFT = Form(Dimension.TIME, "left", "12 hours left")
_MINUTES_LEFT = Form(Dimension.TIME, "left", "30 minutes left")

KINDS = {
    "disk": Kind(
        (_USED, _FREE, _BYTES_FREE, _HOURS_LEFT),
        needs=("path",),
        takes=("window",),
        next_step="delete or move checkpoints and logs, or keep fewer",
    ),
    "inodes": Kind(
        (_USED, _FREE, Form(Dimension.COUNT, "free", "100000 free"), _HOURS_LEFT),
        needs=("path",),
        takes=("window",),
        next_step="delete or pack directories with many small files",
    ),
    "quota": Kind(
        (_USED, _FREE, _BYTES_FREE),
        needs=("command",),
        takes=("pattern",),
        whole_job=True,
        next_step="delete or move files that count towards the quota, or ask for more",
    ),
    "memory": Kind(
        (_USED, _FREE, _BYTES_FREE, _MINUTES_LEFT),
        takes=("window", "process"),
        next_step="find the process that grows, and restart the workers before the kernel kills one",
    ),
    "worker-memory": Kind(
        (Form(Dimension.SIZE, "used", "40 GB used"), _MINUTES_LEFT),
        needs=("process",),
        takes=("window", "limit"),
        next_step="restart the workers at a checkpoint; look for lists that grow with each step",
    ),
    "swap": Kind(
        (_USED, _FREE, _BYTES_FREE),
        next_step="find the process that uses the memory; give the job less data in memory",
    ),
    "load": Kind(
        (Form(Dimension.CORES, "used", "4 cores used"),),
        needs=("process",),
        next_step="find whose processes they are, and move them or the job",
    ),
    "mount": Kind(
        (Form(Dimension.TIME, "", "10 s"),),
        needs=("path",),
        default="10 s",
        next_step="look at the file server and at the network to it",
    ),
    "clock": Kind(
        (Form(Dimension.TIME, "", "2 s"),),
        needs=("reference",),
        default="2 s",
        next_step="start or mend this node's time service",
    ),
    "job": Kind(
        (),
        one_of=("job", "process", "store"),
        takes=("run_id",),
        whole_job=True,
        next_step="look at why it ended, and queue it again",
    ),
    "hang": Kind(
        (Form(Dimension.TIME, "", "20 min"),),
        needs=("path",),
        takes=("process", "signal", "least", "most"),
        words=(LEARNED,),
        default=LEARNED,
        next_step="look at the stacks of all ranks; restart the job if none moves",
    ),
    "slow": Kind(
        (Form(Dimension.PERCENT, "lost", "10 % lost"),),
        needs=("process",),
        default="10 % lost",
        every="30 s",
        whole_job=True,
        next_step="look at the temperature, the other processes and the disk of that node, or drain it",
    ),
    "gpu": Kind(
        (Form(Dimension.CELSIUS, "", "90 C"), _USED, Form(Dimension.SIZE, "free", "2 GB free")),
        words=("throttled", "ecc", "xid", "lost"),
        default="lost",
        next_step="take the node out of the job and look at the device",
    ),
}
COMMON = ("what", "name", "threshold", "every", "for", "again", "do", "of")
"""Keys of every watch."""
INSIDE = ("process",)
"""Keys that a watch in an agent does not need: its workers are at hand."""
INSIDE_PATH = ("hang", "disk", "inodes")
"""Kinds that need no path there: it knows the workers' progress and output, and the directories of the job."""
INSIDE_REFERENCE = ("clock",)
"""Kinds that need no reference there: the nodes are compared with each other."""
DUMPS = ("hang", "worker-memory", "job", "memory", "load", "slow")
"""Kinds that may name processes, and so may dump their stacks."""
RESTARTS = ("hang", "memory", "worker-memory", "gpu")
"""Kinds that a restart of the workers may mend."""
