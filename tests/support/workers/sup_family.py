"""A worker with children that are hard to find or to stop: prints its pid and those of five children, then waits.

One child in its own group, one that left it by setsid, one that was forked twice, one forked twice with an empty
environment, one that ignores SIGTERM. `--bomb N` adds N more that ignore it, each in a session of its own. `--crash`
exits with 3 instead of waiting. With `--unless FILE`, if FILE exists, it exits with 0 at once.
"""

from __future__ import annotations

import os
import signal
import sys


def child(leave: bool = False, twice: bool = False, bare: bool = False, stubborn: bool = False) -> int:
    """Fork a child that waits for ever; return its pid. `stubborn`: it ignores SIGTERM."""
    out, into = os.pipe()
    if os.fork() == 0:
        if leave:
            os.setsid()
        if twice and os.fork() != 0:
            os._exit(0)
        if stubborn:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(into, b"%d" % os.getpid())
        if bare:
            os.execve("/bin/sleep", ["sleep", "1000"], {})
        os.close(into)
        while True:
            signal.pause()
    os.close(into)
    pid = int(os.read(out, 20))
    os.close(out)
    return pid


if "--unless" in sys.argv and os.path.exists(sys.argv[sys.argv.index("--unless") + 1]):
    sys.exit(0)
pids = [os.getpid(), child(), child(leave=True), child(leave=True, twice=True)]
pids += [child(leave=True, twice=True, bare=True), child(leave=True, stubborn=True)]
if "--bomb" in sys.argv:
    pids += [child(leave=True, stubborn=True) for _ in range(int(sys.argv[sys.argv.index("--bomb") + 1]))]
sys.stdout.write(f"family {' '.join(map(str, pids))}\n")
sys.stdout.flush()
if "--crash" in sys.argv:
    sys.exit(3)
while True:
    signal.pause()
