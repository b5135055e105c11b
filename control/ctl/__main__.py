"""`python -m elastic_agent.control.ctl`: the command `elasticctl`."""

from .cli import main

if __name__ == "__main__":
    main()
