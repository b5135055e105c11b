"""A worker with a difficult family: prints the pids of itself and five children, then waits for ever.

One child in its own group, one that left it by setsid, one that was forked twice, one forked twice with nothing in its
environment, one that ignores SIGTERM. `--bomb N` adds N more that ignore it, each in a session of its own. With
`--unless FILE`, if FILE is there, it does nothing at all and is well.
"""

from __future__ import annotations

import os
import signal
import sys


def child(leave: bool = False, twice: bool = False, bare: bool = False, deaf: bool = False) -> int:
    """Fork one that waits for ever; return its pid."""
    out, into = os.pipe()
    if os.fork() == 0:
        if leave:
            os.setsid()
        if twice and os.fork() != 0:
            os._exit(0)
        if deaf:
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
pids += [child(leave=True, twice=True, bare=True), child(leave=True, deaf=True)]
if "--bomb" in sys.argv:
    pids += [child(leave=True, deaf=True) for _ in range(int(sys.argv[sys.argv.index("--bomb") + 1]))]
sys.stdout.write(f"family {' '.join(map(str, pids))}\n")
sys.stdout.flush()
if "--crash" in sys.argv:
    sys.exit(3)
while True:
    signal.pause()
