"""How many nodes a round can have, how many are many, and where its members are: in its announcement, or on pages.

Imports no protobuf, because the question is asked before anything starts.
"""

from __future__ import annotations

MAX_ROUND_BYTES = 1024 * 1024
"""A server of etcd accepts requests of 1.5 MiB, TCPStore values of 8 MiB."""
INLINE_MEMBERS = 64
"""An announcement lists so many members; those of a round with more are on pages, so that no announcement is longer."""
PAGE_MEMBERS = 16
"""Members on a page, on average: which page a member is on depends on its id, so that it finds its place alone."""
PAGES_KEPT = 8
"""Memberships whose pages a coordinator keeps in the store. A node further behind reads a newer announcement."""
FEW_NODES = 256
"""More than these make a large job: what one of them costs the others matters more than a tenth of a second."""
MAX_NODES = 100_000
"""More are refused at the start: such a job was never tried, and c10d holds one notification of each."""
MAX_DIGEST_BYTES = 32
