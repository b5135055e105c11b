"""`python -m elastic_agent.control.watcher`, which is `elastic-agent-watch`."""

from __future__ import annotations

from .cli import main

if __name__ == "__main__":
    main()
