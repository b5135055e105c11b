"""What both ways to launch, `NodeAgent` and the command line, make around an agent."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from ..proto.frozen import replace
from .config.config import LaunchConfig, Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ..agent.agent import Agent
    from ..agent.report import AgentEvent
    from ..rendezvous.records import Round
    from ..rendezvous.store import Store
    from .reporting.torch_events import TorchEvents


def torch_events(config: LaunchConfig, made: Plan, title: str) -> TorchEvents | None:
    """What records torch's events of this job; None if its handler writes nothing and torch is not here to be asked."""
    handler = config.event_log_handler
    if handler in ("null", "dynamic_rendezvous") and "torch.distributed.elastic.events" not in sys.modules:
        return None
    from .reporting.torch_events import TorchEvents

    workers = made.workers
    return TorchEvents(handler, run_id=workers.run_id, role=workers.role, backend=config.rdzv_backend, title=title)


def make_agent(
    made: Plan,
    *,
    store: Store | None = None,
    on_event: Callable[[AgentEvent], None] | None = None,
    on_announce: Callable[[Round], None] | None = None,
    tell: Callable[[str, bool], None] | None = None,
    name: str = "",
    as_program: bool = False,
) -> Agent:
    """The agent for a checked configuration; the arguments as those of `Agent` and `NodeAgent`. Raises UsageError where
    this host cannot bind its workers to CPUs."""
    workers = made.workers
    if workers.numa and not workers.numa_optional:
        from ..agent.processes import numa

        numa.check(workers.numa, workers.base_env, workers.count_workers())
    if as_program:
        from ..agent.processes.nursery_process import begin_ahead

        begin_ahead(made.workers)
    from ..agent.agent import Agent

    spec, make_link = made.rendezvous, None
    # A job of one node loads no module of stores.
    if store is not None or spec.backend != "memory":
        from .store_link import link_to

        if store is not None:
            spec = replace(spec, backend="given")
        make_link = link_to(spec, store, tell, as_program=as_program, grace_s=made.workers.grace_s)
    return Agent(
        made.workers,
        spec,
        make_link=make_link,
        on_event=on_event,
        on_announce=on_announce,
        tell=tell,
        name=name,
    )


def fitted(config: LaunchConfig, made: Plan, tell: Callable[[str, bool], None]) -> Plan:
    """The plan with what the scheduler says of the job's end."""
    from .preemption import end_of_time

    if not end_of_time.says_something(os.environ, made.workers.base_env):
        return made
    given = config.shutdown_timeout is not None or "TORCH_ELASTIC_SHUTDOWN_TIMEOUT" in os.environ
    return replace(made, workers=end_of_time.fitted(made.workers, os.environ, tell, grace_given=given))


def complete(config: LaunchConfig, made: Plan) -> str:
    """Why this job ends before it begins: its script has said that its training is complete. Empty if it has not."""
    if not config.exact_resume:
        return ""
    from .preemption.completion import why_complete

    return why_complete(os.fspath(config.exact_resume), made.rendezvous.command)


def noticing(config: LaunchConfig, agent: Agent, tell: Callable[[str, bool], None]) -> AbstractContextManager[object]:
    """While the job runs, this node leaves it when its cloud takes the host back, if that is asked for."""
    from contextlib import closing, nullcontext

    if config.spot_notices is None:
        return nullcontext()
    from .preemption.notices import Notices

    return closing(Notices(config.spot_notices, os.environ, agent.leave, tell))
