"""The zygote: an interpreter that was started as a worker is, stopped just before its script, and is forked from there.

    PYTHONPATH=<this folder>:... python -u SCRIPT ARGS...

Python imports `sitecustomize` when all of it is set up but the script (docs.python.org/3/library/site.html). Ours, in
this folder, takes every trace of itself back, imports what is to be preloaded, and then waits. Who is forked from it
returns from that import, and Python goes on to run the script as it runs any: argv, path, traceback, exit and all else
are its own doing, not ours. docs/adr/0013-zygote.md says what was weighed.

Part of the nursery's side (`incubator.py` has its end of the socket), in an interpreter that is the user's: nothing but
the standard library is imported, and what is of ours leaves `sys.modules` before a script can see it.

To the zygote, frames: `preload MODULES PER_ROUND` once, then `fork KEY HAS_STDOUT HAS_STDERR CWD ARGC ARGV...
NAME=VALUE...`, each with its descriptors: stdout, stderr, gate, report. From it, lines: `ready SECONDS RSS PSS
MODULES`, `note TEXT`, `forked KEY PID`, `unfit REASON`, after which it only waits to be ended.
"""

from __future__ import annotations
