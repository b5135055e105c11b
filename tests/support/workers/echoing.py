"""A worker that prints each line of a named pipe, its argument, and exits with 1 after `fail`, with 0 after `end`."""

from __future__ import annotations

import sys

print("begun", flush=True)
while True:
    with open(sys.argv[1]) as orders:
        for line in orders:
            if line.strip() in ("fail", "end"):
                sys.exit(line.strip() == "fail")
            sys.stdout.write(line)
            sys.stdout.flush()
