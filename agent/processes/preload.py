"""Whether workers are forked with modules imported, and the messages about it. `agent/nursery/zygote_client.py` does
the work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from ..spec import WorkerSpec
from .debugger import follows
from .environment import PER_WORKER
from .protocol import Launch, Preloaded, PreloadFailed, PreloadWarning
from .supervisor import Supervisor

AUTO = "auto"
"""In place of modules: preload what the script imports first, and then what it has imported."""
MIB_KIB = 1024


class Preloading:
    """The agent's side of --preload. Exists only with that flag."""

    def __init__(self, spec: WorkerSpec, log: Callable[[str, bool], None]) -> None:
        """`log` gets each message, and whether it is routine."""
        self._spec = spec
        self._log = log
        self._logged: set[str] = set()
        self.status = f"importing {', '.join(spec.preload)}"
        """The last message, or what is being done before there is one."""
        problem = objection(spec.argv)
        self.forking = not problem
        """Whether workers are to be forked. Where that turns out to be impossible, the nursery starts them plainly."""
        if problem:
            self.report(PreloadFailed(problem))

    def begin(self, supervisor: Supervisor, cwd: str) -> None:
        """Order the nursery, which was just started, to import the modules."""
        if self.forking:
            like = Launch(0, self._spec.argv, self._spec.base_env, cwd)
            supervisor.preload(self._spec.preload, PER_WORKER, like)

    def report(self, fact: Preloaded | PreloadFailed | PreloadWarning) -> None:
        """Log what happened; a message that is not routine only once."""
        self.status, routine = sentence(fact)
        if routine or self.status not in self._logged:
            self._logged.add(self.status)
            self._log(self.status, routine)


def objection(argv: Sequence[str]) -> str:
    """Why a worker with this command can only be started plainly, in one clause; empty if it may be forked."""
    if follows():
        return "a debugger follows the workers, and starts each by a command of its own"
    if tuple(argv[:2]) != (sys.executable, "-u"):
        return "the workers are not scripts that this Python runs (--no-python, PYTHON_EXEC)"
    target = argv[3] if argv[2] == "-m" else argv[2]
    if target == "-":
        return "the script is read from standard input"
    if "$" in target:
        return "each worker runs a script of its own (${local_rank} in its name)"
    return ""


def sentence(fact: Preloaded | PreloadFailed | PreloadWarning) -> tuple[str, bool]:
    """The message about this, and whether it is routine."""
    if isinstance(fact, PreloadWarning):
        return f"--preload: {fact.text}", False
    if isinstance(fact, PreloadFailed):
        return f"--preload has no effect, workers are started plainly: {fact.reason}", False
    if not fact.modules:
        return f"--preload {AUTO}: once a worker has run, the next are forked with the modules that it imported", True
    memory = f"{fact.rss_kib / MIB_KIB:.0f} MiB in memory ({fact.pss_kib / MIB_KIB:.0f} MiB by PSS)"
    return f"preloaded {', '.join(fact.modules)} in {fact.took_s:.1f} s, for workers to share: {memory}", True
