"""A debugger in the agent's process that follows the processes it starts: pydevd, which is debugpy's (VS Code) and
PyCharm's.

pydevd replaces `os.fork`, `os.posix_spawn` and their like in the process that it debugs, and so gets between a start
and the new process. Guardian and nursery must not be debugged: they are started by the functions of `posix`, which it
leaves alone (`nursery_process.py`). Workers must, and are started by the nursery, where it is not: so the agent asks
pydevd for the command that it would have made of theirs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def follows() -> bool:
    """Whether a debugger wants to debug what this process starts."""
    return "_pydev_bundle.pydev_monkey" in sys.modules and hasattr(os, "original_posix_spawn")


def followed(argv: Sequence[str]) -> tuple[str, ...]:
    """The command by which the debugger gets hold of a process that would be started with `argv`; `argv` itself where
    none wants to, or where it is no Python."""
    if not follows():
        return tuple(argv)
    pydev_monkey = sys.modules["_pydev_bundle.pydev_monkey"]
    pydev_monkey.send_process_created_message()
    return tuple(pydev_monkey.patch_args(list(argv)))
