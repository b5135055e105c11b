"""The zygote: an interpreter that was started as a worker is, paused just before its script, from which workers are
forked.

    PYTHONPATH=<this folder>:... python -u SCRIPT ARGS...

Python imports `sitecustomize` when everything but the script is set up (docs.python.org/3/library/site.html). Ours, in
this folder, removes every trace of itself, imports what is to be preloaded, and then waits for requests. A worker that
is forked from it returns from that import, and Python goes on to run the script as it runs any: argv, path, traceback
and exit are Python's own. docs/adr/0013-zygote.md says what was weighed.

The other end of its socket is in the nursery (`agent/nursery/zygote_client.py`). The interpreter belongs to the user's
script: nothing but the standard library is imported, and our modules leave `sys.modules` before a script can see them.

To the zygote, frames: `preload MODULES PER_ROUND AGAIN` once (AGAIN: an earlier zygote found that these can be), then
`fork KEY HAS_STDOUT HAS_STDERR HAS_CGROUP CWD ARGC ARGV... NAME=VALUE...`, each with its descriptors: stdout, stderr,
the directory of the cgroup, gate, start pipe. From it, lines: `ready SECONDS RSS PSS MODULES`, `warning TEXT`,
`forked KEY PID IN_CGROUP`, and, after which it only waits to be killed, `again MODULES` (another zygote can preload
these) or `cannot_fork REASON`. Once a successor (`successor.py`) has imported what a worker has, it serves the same
socket in its zygote's place.
"""

from __future__ import annotations
