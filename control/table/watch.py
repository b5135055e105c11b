"""A table of watches, as read."""

from __future__ import annotations

from ...proto.frozen import dataclass, field
from ..decisions.outbox import SendPace
from ..decisions.watches import Rule
from .kinds import Threshold


@dataclass(frozen=True)
class Watch:
    """One `[[watch]]`."""

    number: int
    """Its place in the file, from 1."""
    what: str
    title: str
    """What messages call it: `disk checkpoints`."""
    threshold: Threshold | None
    every_s: float
    rule: Rule
    do: tuple[str, ...]
    """In this order: `notify`, `dump`, `save`, `stop`, `exec:COMMAND`; in an agent also `restart`, `drain`."""
    path: str = ""
    """Absolute, so that the working directory does not matter."""
    process: str = ""
    """A regular expression that is searched in command lines."""
    job: str = ""
    """A name of SLURM jobs."""
    store: str = ""
    """Where the nodes of a job meet: `c10d://HOST:PORT`, `etcd://HOST:PORT`."""
    run_id: str = ""
    command: tuple[str, ...] = ()
    pattern: str = ""
    reference: str = ""
    window_s: float = 0.0
    """How far back a rate looks."""
    limit_b: float = 0.0
    """What a process may use; 0: what is available on the host."""
    least_s: float = 10.0
    """The shortest limit that is learned."""
    most_s: float = 1800.0
    """The longest, and that of what was not seen yet."""
    whole_job: bool = False
    """One node of the job watches it."""
    signal: str = ""
    """The signal at which the processes' own faulthandler writes their stacks."""

    @property
    def asks_nodes(self) -> bool:
        """In an agent: whether nodes compare what it is about."""
        if self.what == "clock":
            return not self.reference
        return self.what == "hang" or (self.what == "slow" and self.whole_job)


@dataclass(frozen=True)
class Table:
    """A file of watches."""

    path: str
    job: str
    watches: tuple[Watch, ...]
    notify: tuple[str, ...] = ()
    save_switch: str = ""
    kill_switch: str = ""
    dumps: str = ""
    """The directory for stacks."""
    pace: SendPace = field(default_factory=SendPace)
