"""`python -m elastic_agent.control.ctl`: the command `elasticctl`."""

from __future__ import annotations

from .cli import main

if __name__ == "__main__":
    main()
