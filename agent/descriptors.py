"""The limit of open descriptors (RLIMIT_NOFILE, setrlimit(2)): an agent raises its own, its workers keep theirs.

The limit belongs to the process, so all agents of a process share it, and it stays raised when they have ended.
"""

from __future__ import annotations

import errno
import resource

REFUSED = (errno.EMFILE, errno.ENFILE)
"""What the system answers where no descriptor is left, in the process or on the host."""
RAISED = 1 << 16
"""The limit that an agent raises its own to, where the hard limit allows as much: 4,096 workers need 16,384, a store
for 1,000 nodes 3,000. No more, because programs that close every descriptor up to the limit take long with a high one.
"""

_originally = 0
_raised_to = -1


def raise_soft_limit() -> int:
    """Raise this process's soft limit to the hard one, `RAISED` at most. Return the soft limit that it had before the
    first call: the one for its workers. A limit that cannot be raised stays as it is."""
    global _originally, _raised_to  # noqa: PLW0603 - the limit belongs to the process, and so does this
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != _raised_to:
        _originally = soft
    wanted = RAISED if hard == resource.RLIM_INFINITY else min(RAISED, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _originally
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return _originally  # a container's policy forbids it
    _raised_to = wanted
    return _originally
