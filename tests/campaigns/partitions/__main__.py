"""`python -m tests.campaigns.partitions`: partitions of real nodes, in network namespaces, on real etcd."""

from __future__ import annotations

import sys

from .campaign import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
