"""Whether workers are forked with modules imported, and what people are told of it. `agent/nursery/zygote_client.py`
does it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from ..spec import WorkerSpec
from .environment import PER_WORKER
from .protocol import Launch, Note, Preloaded, Unpreloaded
from .supervisor import Supervisor

AUTO = "auto"
"""In place of modules: learn them from what the script imports."""
MIB_KIB = 1024


class Preloading:
    """The agent's side of --preload. Exists only where that was asked for."""

    def __init__(self, spec: WorkerSpec, tell: Callable[[str, bool], None]) -> None:
        self._spec = spec
        self._tell = tell
        self._told: set[str] = set()
        self.status = f"importing {', '.join(spec.preload)}"
        """Where it stands, as people were told last."""
        problem = objection(spec.argv)
        self.forking = not problem
        """Whether workers are to be forked. Where that turns out to be impossible, the nursery starts them plainly."""
        if problem:
            self.hear(Unpreloaded(problem))

    def begin(self, supervisor: Supervisor, cwd: str) -> None:
        """Have the nursery, which was just started, import the modules."""
        if self.forking:
            like = Launch(0, self._spec.argv, self._spec.base_env, cwd)
            supervisor.preload(self._spec.preload, PER_WORKER, like)

    def hear(self, fact: Preloaded | Unpreloaded | Note) -> None:
        """Tell people, each thing that is out of the ordinary once."""
        self.status, routine = sentence(fact)
        if routine or self.status not in self._told:
            self._told.add(self.status)
            self._tell(self.status, routine)


def objection(argv: Sequence[str]) -> str:
    """Why a worker with this command can only be started plainly, in one clause; empty if it may be forked."""
    if tuple(argv[:2]) != (sys.executable, "-u"):
        return "the workers are not scripts that this Python runs (--no-python, PYTHON_EXEC)"
    target = argv[3] if argv[2] == "-m" else argv[2]
    if target == "-":
        return "the script is read from standard input"
    if "$" in target:
        return "each worker runs a script of its own (${local_rank} in its name)"
    return ""


def sentence(fact: Preloaded | Unpreloaded | Note) -> tuple[str, bool]:
    """What to tell people, and whether it is routine."""
    if isinstance(fact, Note):
        return f"--preload {AUTO}: {fact.text}", False
    if isinstance(fact, Unpreloaded):
        return f"--preload has no effect, workers are started plainly: {fact.reason}", False
    if not fact.modules:
        return f"--preload {AUTO}: workers will be forked with what they import, once that is known", True
    memory = f"{fact.rss_kib / MIB_KIB:.0f} MiB in memory ({fact.pss_kib / MIB_KIB:.0f} MiB by PSS)"
    return f"preloaded {', '.join(fact.modules)} in {fact.took_s:.1f} s, for workers to share: {memory}", True
