"""Launching as the command line does: what happens is printed on stderr, and how it ended."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence

from ..agent.errors import AgentError, UsageError
from ..agent.spec import PASSWORD_VARIABLE
from .agent_setup import complete, fitted, make_agent, noticing, torch_events
from .config.config import LaunchConfig, Plan, plan
from .reporting.exceptions import error_of
from .reporting.printing import PLAIN, Printing
from .watched import Watched

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..control.control_socket import Service
    from .reporting.console import Console
    from .reporting.event_file import EventFile
    from .reporting.torch_events import TorchEvents


def run_command(
    config: LaunchConfig, argv: Sequence[str], title: str, *, as_program: bool, printing: Printing = PLAIN
) -> None:
    """Run a job as the command line does: print what happens and how it ended. `argv`: a worker's command; `title`:
    what the failure summary calls it. `as_program`: the process runs this job only and exits after it. Raises the
    AgentError that ended it, with `reported` set: it was printed."""
    from ..agent import signals
    from .reporting.console import Console

    if as_program:
        signals.ready()
    console = Console(os.environ, printing)
    events: EventFile | None = None
    watched: Watched | None = None
    try:
        made = _planned(config, argv, title, console, as_program)
        if why := complete(config, made):
            console.complete(why)
            return
        events = _open_event_file(console)
        watched = _watched(config, made, console)
        agent = make_agent(
            watched.plan,
            tell=console.tell,
            on_event=watched.observing(None),
            on_announce=watched.announcing(None),
            as_program=as_program,
        )
        console.name, console.take_midline, agent.show = agent.name, agent.workers.logs.take_midline, console.show
        recorded = torch_events(config, made, title)
        _follow(agent.name, watched.service, events, recorded)
        _loaded(as_program)
        with noticing(config, agent, console.tell):
            report = watched.run(agent, last=as_program)
        error = error_of(report, agent.name)
        _before_the_end(config, console, events)
        console.conclude(title, report, error)
        if recorded is not None:
            recorded.concluded(report, agent.status())
    except AgentError as failure:
        _close(events)
        _fail(failure, console)
        raise
    finally:
        if watched is not None:
            watched.close()
        _close(events)
    if error is not None:
        error.reported = True
        raise error


def _before_the_end(config: LaunchConfig, console: Console, events: EventFile | None) -> None:
    """Say what is to be said before the last line."""
    _close(events)
    _say_if_unused(config, console)


def _close(events: EventFile | None) -> None:
    """Close the file, which may say what is missing from it."""
    if events is not None:
        events.close()


def _fail(failure: AgentError, console: Console) -> None:
    if isinstance(failure, UsageError):
        from .config.flags import in_flags

        failure.args = (in_flags(str(failure)),)
    console.fail(failure)


def _loaded(as_program: bool) -> None:
    """What the process has loaded until now stays: it is never searched for garbage. See `__main__.py`."""
    if as_program:
        gc.freeze()
        gc.enable()


def _follow(name: str, service: Service, *recorders: EventFile | TorchEvents | None) -> None:
    for each in recorders:
        if each is not None:
            each.follow(name, service)


def _watched(config: LaunchConfig, made: Plan, console: Console) -> Watched:
    watched = Watched(config, made, console.tell, console.show)
    if console.on_terminal:
        from .reporting.waiting_line import WaitingLine

        watched.service.companions.append(WaitingLine(console.in_place))
    return watched


def _planned(config: LaunchConfig, argv: Sequence[str], title: str, console: Console, as_program: bool) -> Plan:
    made = plan(config, argv, title, _environment(console) if as_program else os.environ)
    for warning in made.warnings:
        console.tell(warning, False)
    return fitted(config, made, console.tell)


def _environment(console: Console) -> Mapping[str, str]:
    """The environment, out of which the password of etcd's user is taken for good: nobody but this job has use for
    it."""
    if PASSWORD_VARIABLE not in os.environ:
        return os.environ
    from .secret_variable import take

    env = dict(os.environ)
    _, why_shown = take(PASSWORD_VARIABLE)
    if why_shown:
        console.tell(
            f"this host shows {PASSWORD_VARIABLE} to whoever may read /proc/{os.getpid()}/environ, where it cannot be "
            f"overwritten ({why_shown}); give password_file in --rdzv-conf instead",
            False,
        )
    return env


def _open_event_file(console: Console) -> EventFile | None:
    """The file that ELASTIC_AGENT_EVENTS names; without the variable its module is not loaded either."""
    if not (path := os.environ.get("ELASTIC_AGENT_EVENTS")):
        return None
    from .reporting.event_file import EventFile

    return EventFile(path, console.show)


def _say_if_unused(config: LaunchConfig, console: Console) -> None:
    """After a job with --exact-resume: whether its workers have taken no notice of it."""
    if config.exact_resume and not os.path.exists(os.path.join(config.exact_resume, "round.json")):
        console.tell(
            f"--exact-resume: no worker has used {os.fspath(config.exact_resume)}, so restarts begin where the script "
            "itself goes on; elastic_agent.worker is for scripts without Lightning (docs/resume.md)",
            False,
        )
