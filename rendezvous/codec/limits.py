"""How many nodes a round can have: what its record may hold, and what each node takes of it.

Imports no protobuf, because the question is asked before anything starts.
"""

from __future__ import annotations

MAX_ROUND_BYTES = 1024 * 1024
"""A server of etcd accepts requests of 1.5 MiB, TCPStore values of 8 MiB."""
ENDING_BYTES = MAX_ROUND_BYTES // 4
"""Of a round's record, kept for how the last round ended: `MAX_ANNOUNCED_EXITS` exits of workers with their texts."""
NAME_BYTES = 72
"""A node's name: the name of its host, of 64 bytes at most on Linux, a colon and a process id."""
_FIXED_BYTES = 50
"""Of a member: its identity, of 18 bytes, four numbers of 6 at most, and the tags and lengths of its texts."""


def most_nodes(role: str) -> int:
    """The most nodes that a round's record surely holds if all have this role."""
    return (MAX_ROUND_BYTES - ENDING_BYTES) // (_FIXED_BYTES + NAME_BYTES + len(role.encode("utf-8", "replace")))
