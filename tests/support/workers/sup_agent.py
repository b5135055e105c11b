"""An agent reduced to its supervisor: starts two families of processes, and observes them until it is killed."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

from elastic_agent.agent.processes.protocol import Launch
from elastic_agent.agent.processes.supervisor import Supervisor

family = str(Path(__file__).with_name("sup_family.py"))
supervisor = Supervisor()
supervisor.open()
argv = (sys.executable, "-S", family)
supervisor.start([Launch(key, argv, dict(os.environ), str(Path.cwd())) for key in range(2)])
poll = select.poll()
poll.register(supervisor.fileno(), select.POLLIN)
while True:
    poll.poll()
    supervisor.observe()
