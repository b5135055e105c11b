"""The command line of `elasticctl`."""

from __future__ import annotations

import json
import os
import select
import shutil
import sys
import time
from collections.abc import Sequence

import click

from . import event_sources, find, screen, story, views
from .asking import begin, call
from .call import AgentUnreachable, CallRefused, Message
from .find import Agent, NotFound
from .printing import (
    PROGRAM,
    UNWRITTEN,
    Commands,
    begin_screen,
    fail,
    is_screen,
    open_closed_streams,
    said_if_none,
    say,
    say_line,
    say_missed,
    say_output,
    say_prefixed,
)
from .selection import MOST, NUMBER, Chosen, as_json, because, choosing, ranks_named, show_credentials

REFUSED, WRONG = 1, 2
"""Exit statuses beside those of `find`: the agent says no; the command is wrong."""
REDRAW_S = 1.0
"""At most so long until a live screen is drawn anew: it shows ages."""


@click.group(PROGRAM, cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@choosing
@click.version_option(package_name="elastic-agent", prog_name=PROGRAM)
@click.pass_context
def elasticctl(
    context: click.Context, *, address: str, node: str, job: str, token_file: str, ca_file: str, tls_name: str
) -> None:
    """See and steer the jobs whose agents run on this host.

    Exit status: 0 done, 1 the agent refused or something is damaged, 2 a wrong command, 3 no such agent runs here,
    4 an agent does not answer, 5 several agents or jobs fit, 74 nothing can be printed, or a file not be read,
    130 Ctrl-C.
    """
    show_credentials(token_file, ca_file, tls_name)
    context.obj = Chosen(address, job, node)


@elasticctl.command()
@click.option("-w", "--watch", is_flag=True, help="Go on, and draw the screen anew whenever something happens.")
@click.option("-o", "--output", type=click.Choice(["screen", "wide", "json"]), default="screen", help="[screen]")
@as_json
@click.pass_obj
def status(chosen: Chosen, *, watch: bool, output: str, in_json: bool) -> None:
    """Where the job stands: what, why, how many of how many, what is odd, and what to do next."""
    output = "json" if in_json else output
    if not watch:
        _show(*_status(chosen, output))
        return
    follower = begin(find.best(chosen.agents()).path, "Events", {"since": -1, "follow": True})
    drawn = False
    try:
        while not follower.ended:
            try:
                lines, silent = _status(chosen, output)
            except (NotFound, AgentUnreachable):
                # An agent that ends closes its streams a moment before or after it takes no more calls.
                if not drawn or not follower.ends_soon():
                    raise
                return
            if output != "json":
                begin_screen()
            _show(lines, silent)
            drawn = True
            if select.select([follower], [], [], REDRAW_S)[0]:
                follower.arrived()
    finally:
        follower.close()


def _status(chosen: Chosen, output: str) -> tuple[list[screen.Line], list[str]]:
    """What there is to print, and a line for each agent that does not answer."""
    found = chosen.agents()
    job, workers, events, silent = views.job_and_workers(found, find.best(found), brief=output == "screen")
    if output == "json":
        return [screen.Line(json.dumps({"job": job, "workers": workers, "events": events}))], silent
    width = shutil.get_terminal_size((80, 24)).columns
    saved = _newest(job["checkpoints"]) if job["checkpoints"] else None
    return screen.screen(job, workers, events, time.time(), width=width, wide=output == "wide", saved=saved), silent


def _show(lines: Sequence[screen.Line], silent: Sequence[str]) -> None:
    for line in lines:
        say_line(line.text, odd=line.odd)
    _report(silent)


def _newest(directory: str) -> Message | None:
    from .checkpoints import newest

    return newest(directory)


@elasticctl.command()
@click.option("-f", "--follow", is_flag=True, help="Go on until the agent ends.")
@click.option("--since", type=NUMBER, default=0, metavar="N", help="From event N on; -N: the last N. [all kept]")
@click.option("--node", default="", help="Of this node's agent, where several run here. [the coordinator]")
@as_json
@click.pass_obj
def events(chosen: Chosen, *, follow: bool, since: int, node: str, in_json: bool) -> None:
    """What happened, one line an event."""
    found = chosen.agents()
    agent = find.one(found, node) if node else find.best(found)
    for each in views.streams([agent], "Events", since=since, follow=follow):
        if in_json:
            _echo(each)
            continue
        if each["missed"]:
            say(f"({each['missed']} events before this one are not kept)")
        when = time.strftime("%H:%M:%S", time.localtime(each["timeS"]))
        failure = f": {each['failure']}" if each["failure"] and each["failure"] not in each["because"] else ""
        who = "job" if each["what"] == "announced" else each["node"]
        say(
            f"{each['number']:>5}  {when}  round {each['round']}  {who}  {each['phase'] or each['what']}: "
            f"{each['because']}{failure}"
        )


@elasticctl.command()
@click.argument("rank", metavar="RANK|all")
@click.option("-f", "--follow", is_flag=True, help="Go on, over all rounds, until the agent ends.")
@click.option(
    "-n", "--lines", type=click.IntRange(0, MOST), metavar="N", help="The last N lines. [what is remembered: 64 KiB]"
)
@as_json
@click.pass_obj
def logs(chosen: Chosen, *, rank: str, follow: bool, lines: int | None, in_json: bool) -> None:
    """What workers write: of one rank, or of all on any host that answers."""
    ranks = [] if rank == "all" else ranks_named([rank])
    # Where it goes on only the agent can tell what is old.
    tail = {"tailLines": lines or -1} if lines is not None and follow else {}
    parts = views.streams(chosen.having(ranks), "Logs", ranks=ranks, follow=follow, **tail)
    if lines is not None and not follow:
        parts = iter(views.last_lines(parts, lines))
    unfinished: dict[tuple[int, str], str] = {}
    for part in said_if_none(parts, rank):
        if in_json:
            _echo(part)
        elif rank == "all":
            say_prefixed(part, unfinished)
        else:
            say_missed(part)
            say_output(part["text"], nl=False)
    for (of, _), text in unfinished.items():
        if text:
            say_output(f"[{of}] {text}")


@elasticctl.command()
@click.argument("rank", nargs=-1)
@click.option("--native", is_flag=True, help="Also native frames, of one process of each of the first groups.")
@as_json
@click.pass_obj
def stacks(chosen: Chosen, *, rank: tuple[str, ...], native: bool, in_json: bool) -> None:
    """Where workers stand in their code, on any host that answers: equal stacks together, the odd one first."""
    ranks = ranks_named(rank)
    answers, silent = views.together(chosen.having(ranks), "Stacks", ranks=ranks, native=native)
    groups, texts = views.merged(answers), [text for answer in answers for text in answer["native"]]
    if in_json:
        _echo({"groups": groups, "native": texts})
    for group in groups if not in_json else []:
        waits = ", waits for others" if group.get("waits") else ""
        say(f"rank {', '.join(map(str, group['ranks']))}: in {group['at']}{waits}")
        say(f"{group.get('text', '').rstrip()}\n")
    for text in texts if not in_json else []:
        say(f"{text}\n")
    if not (groups or silent):
        say(f"{PROGRAM}: no such worker runs on a host that answers", err=True)
    _report(silent)


@elasticctl.command()
@click.option("-w", "--watch", is_flag=True, help="Go on, once a second.")
@as_json
@click.pass_obj
def top(chosen: Chosen, *, watch: bool, in_json: bool) -> None:
    """Memory and processor time of the workers that can be asked of, and GPUs of those that run here."""
    from . import gpus

    before: dict[tuple[str, int], tuple[float, float]] | None = None
    while True:
        try:
            answers, _ = views.together(found := chosen.everywhere(), "Workers")
        except NotFound as error:
            if before is None or error.status != find.NONE:
                raise
            return  # the job that was looked at has ended
        trouble = gpus.add([each for each in answers if each["name"] in find.here(found)])
        now_s = time.monotonic()
        if in_json:
            _echo(answers)
        else:
            if watch and is_screen():
                click.clear()
            for line in views.top(answers, before or {}, now_s):
                say(line)
            if trouble:
                say(f"GPUs are not shown: {trouble}", err=True)
        if not watch:
            return
        before = {(of["name"], each["pid"]): (each.get("cpuS", 0.0), now_s) for of in answers for each in of["workers"]}
        select.select([], [], [], REDRAW_S)


@elasticctl.command()
@click.argument("file", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@as_json
@click.pass_obj
def explain(chosen: Chosen, *, file: tuple[str, ...], in_json: bool) -> None:
    """The story of a job: each round, what led to its end, whom it charged, what it cost, and where the time went.

    From the events of the agent that coordinates, or from files that ELASTIC_AGENT_EVENTS named, of ended jobs too.
    """
    now = None if file else {False: time.monotonic(), True: time.time()}
    found = story.stories_of(event_sources.events(file, chosen.agents), now)
    if in_json:
        _echo({**story.as_message(found[-1]), "earlier": [story.as_message(each) for each in found[:-1]]})
        return
    for line in story.all_lines(found):
        say(line)


@elasticctl.command()
@click.argument("file", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@click.option("-o", "--output", type=click.Path(dir_okay=False), required=True, help="The HTML file to write.")
@click.pass_obj
def report(chosen: Chosen, *, file: tuple[str, ...], output: str) -> None:
    """The page of a job (elastic-agent --page) as one file of HTML that needs nothing else.

    From what the agents of this host keep, or from files that ELASTIC_AGENT_EVENTS named, of ended jobs too.
    """
    event_sources.write_report(output, event_sources.events(file, chosen.agents), file)


@elasticctl.command()
@click.argument("node", default="")
@because
@as_json
@click.pass_obj
def drain(chosen: Chosen, *, node: str, reason: str, in_json: bool) -> None:
    """Have a node of this host leave its job in order; the others go on."""
    _do(find.one(chosen.agents(), node), "Drain", in_json, reason=reason)


@elasticctl.command()
@click.option("--label", default="", help="Of the checkpoint, which is kept. [asked]")
@because
@as_json
@click.pass_obj
def save(chosen: Chosen, *, label: str, reason: str, in_json: bool) -> None:
    """Have all ranks of the job make a checkpoint at their next step, and go on."""
    _do(find.best(chosen.agents()), "Save", in_json, label=label, reason=reason)


@elasticctl.command()
@click.option("--requeue", is_flag=True, help="Every agent ends with 75, to be started again, and not with 83.")
@click.option("--node", default="", metavar="NODE", help="Only this node's agent, as by SIGTERM.")
@because
@as_json
@click.pass_obj
def stop(chosen: Chosen, *, requeue: bool, node: str, reason: str, in_json: bool) -> None:
    """End the job: all ranks save at their next step and exit. Workers without the worker library get SIGTERM."""
    if node and requeue:
        raise click.UsageError("--node stops one agent as SIGTERM does; leave out --requeue, or use drain")
    found = chosen.agents()
    if node:
        _do(find.one(found, node), "Stop", in_json, reason=reason)
    else:
        _do(find.best(found), "Stop", in_json, reason=reason, job=True, requeue=requeue)


@elasticctl.command()
@because
@as_json
@click.pass_obj
def restart(chosen: Chosen, *, reason: str, in_json: bool) -> None:
    """Have all ranks save at their next step and start again; no node is charged."""
    _do(find.best(chosen.agents()), "RestartRound", in_json, reason=reason)


@elasticctl.command()
@click.argument("what", default="")
@click.option("--node", default="", help="Of this node, where several run here.")
@as_json
@click.pass_obj
def watch(chosen: Chosen, *, what: str, node: str, in_json: bool) -> None:
    """What a node's agent watches from now on: a file of watches, names such as hang,disk, or nothing."""
    agent = find.one(chosen.agents(), node)
    if os.path.isfile(what):
        from ..table.relative import with_absolute_paths

        with open(what, encoding="utf-8-sig", errors="replace") as file:
            table = with_absolute_paths(file.read(), os.path.dirname(os.path.abspath(what)))
        _do(agent, "SetWatch", in_json, table=table)
    elif "/" in what or what.endswith(".toml"):
        raise click.BadParameter(f"there is no file {what!r}; give one, or names of usual watches such as hang,disk")
    else:
        _do(agent, "SetWatch", in_json, names=what)


def _do(agent: Agent, method: str, in_json: bool, **fields: object) -> None:
    done = call(agent.path, method, **fields)
    if in_json:
        _echo(done)
    else:
        say(done["text"])


@elasticctl.command()
@click.argument("directory", required=False, type=click.Path(exists=True, file_okay=False))
@as_json
@click.pass_obj
def checkpoints(chosen: Chosen, *, directory: str | None, in_json: bool) -> None:
    """The checkpoints in a directory of the worker library, the newest first; or in that of the job that runs here."""
    from .checkpoints import kept, table

    found = kept(directory or chosen.checkpoints())
    if in_json:
        _echo(found)
    else:
        for line in table(found):
            say(line)


@elasticctl.group()
def data() -> None:
    """What can be proved of a training's data."""


@data.command()
@click.argument("directory", required=False, type=click.Path(exists=True))
@as_json
@click.pass_obj
def verify(chosen: Chosen, *, directory: str | None, in_json: bool) -> None:
    """Each byte of each checkpoint against its checksums, and that each sample was trained on exactly once.

    Of a directory of the worker library, or of that of the job that runs here.
    """
    where = directory or chosen.checkpoints()
    sys.stdout.flush()
    form = ["--json"] if in_json else []
    os.execv(sys.executable, [sys.executable, "-m", "elastic_agent.worker", "verify", *form, where])


@elasticctl.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """What makes a shell complete this program's commands: eval "$(elasticctl completion bash)"."""
    from click.shell_completion import get_completion_class

    if made := get_completion_class(shell):
        click.echo(made(elasticctl, {}, PROGRAM, "_ELASTICCTL_COMPLETE").source())


def _report(silent: Sequence[str]) -> None:
    """Say which agents did not answer, and end with their status; nothing where all did."""
    for line in silent:
        say(f"{PROGRAM}: {line}", err=True)
    if silent:
        sys.exit(find.SILENT)


def _echo(message: object) -> None:
    click.echo(json.dumps(message))


def main(argv: Sequence[str] | None = None) -> None:
    """The program. Ends the process with one of the exit statuses that its help lists."""
    open_closed_streams()
    try:
        elasticctl.main(argv, prog_name=PROGRAM, complete_var="_ELASTICCTL_COMPLETE")
    except NotFound as error:
        fail(str(error), error.status)
    except AgentUnreachable as error:
        fail(str(error), find.SILENT)
    except CallRefused as error:
        fail(str(error), REFUSED)
    except OSError as error:
        where = f"{os.fsdecode(error.filename)}: " if error.filename is not None else "cannot print or read: "
        fail(f"{where}{error.strerror}; make room, or look at the file", UNWRITTEN)
