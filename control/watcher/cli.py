"""The command line of `elastic-agent-watch`."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import click

from ...agent.errors import UsageError
from ..actions.perform import Actor
from ..ctl.printing import UNWRITTEN, fail, open_closed_streams
from ..notify.channels import Channel, Message, NotDelivered, channel
from ..notify.notifier import Notifier
from ..table.kinds import LEARNED
from ..table.parse import check_actions, read_table
from ..table.watch import Table, Watch
from .advise import advise
from .runner import Runner

PROGRAM = "elastic-agent-watch"
CLOSE_S = 20.0
"""How long messages may take to go out when the program ends."""
NEEDS_TIME = ("load",)
"""Kinds that compare two looks, and keep nothing from one process to the next."""


@click.command(PROGRAM, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.argument("table", metavar="FILE.toml")
@click.option(
    "--once", is_flag=True, help="Read everything once and end, for cron; --state keeps what the next run needs."
)
@click.option("--state", metavar="PATH", help="File that keeps the state between runs of --once. [FILE.toml.state]")
@click.option("--notify", metavar="URL", multiple=True, help="A channel, beside those of the file; may be repeated.")
@click.option("--job", metavar="NAME", help="Name of the job in messages, instead of that in the file.")
@click.option("--save-switch", metavar="PATH", help="The file that 'save' makes.")
@click.option("--kill-switch", metavar="PATH", help="The file that 'stop' makes.")
@click.option("--check", is_flag=True, help="Read the file, print what it watches, and end.")
@click.option("--test", is_flag=True, help="Send one message by each channel and end: 0 if all arrived, else 1.")
@click.option("--verbose", is_flag=True, help="Print each reading.")
def watch(
    table: str,
    *,
    once: bool,
    state: str | None,
    notify: tuple[str, ...],
    job: str | None,
    save_switch: str | None,
    kill_switch: str | None,
    check: bool,
    test: bool,
    verbose: bool,
) -> None:
    """Run the watches of FILE.toml: beside a job, from cron (--once), or from a batch job that requeues itself.

    `elastic-agent-watch advise --help` is about how often to save.
    """
    read = read_table(table)
    read = replace(
        read,
        notify=(*read.notify, *notify),
        job=read.job if job is None else job,
        save_switch=os.path.abspath(save_switch) if save_switch else read.save_switch,
        kill_switch=os.path.abspath(kill_switch) if kill_switch else read.kill_switch,
    )
    check_actions(read)
    channels = [channel(url) for url in read.notify]
    for each in channels:
        each.check()
    if check:
        for one in read.watches:
            click.echo(described(one))
    elif test:
        sys.exit(_test(channels, read))
    elif once:
        _once(read, channels, os.path.abspath(state or f"{table}.state"), verbose)
    else:
        sys.exit(_on_and_on(read, channels, verbose))


def described(watch: Watch) -> str:
    """One line of --check."""
    limit = f" at {watch.threshold.text!r}" if watch.threshold else ""
    lasting = f", for {watch.rule.for_s:g} s" if watch.rule.for_s else ""
    return f"watch {watch.number}: {watch.title}{limit}, every {watch.every_s:g} s{lasting}: {', '.join(watch.do)}"


def log(line: str) -> None:
    """A line on stdout, with the time; dropped where it cannot be written, such as on the disk that is full."""
    with contextlib.suppress(OSError):
        click.echo(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {line}")


def _quiet(line: str) -> None:
    """Readings are not printed."""


def _once(table: Table, channels: list[Channel], state: str, verbose: bool) -> None:
    from .state_file import Remembered, load, locked, save

    for one in table.watches:
        if one.what in NEEDS_TIME or (one.threshold is not None and one.threshold.side in (LEARNED, "xid")):
            raise UsageError(
                f"{table.path}: watch {one.number} ({one.what}): --once reads once and compares nothing; run without it"
            )
    with locked(state) as ours:
        if not ours:
            log(f"another run uses {state}; this run ends without a reading")
            return
        before = load(state)
        notifier = Notifier(channels, table.pace, table.job, socket.gethostname(), log)
        for name, events in before.unsent.items():
            for event in events:
                notifier.tell_one(name, *event)
        runner = Runner(table, Actor(table, notifier, socket.gethostname(), log), log if verbose else _quiet)

        def keep(known: Remembered) -> None:
            known.unsent = before.unsent
            try:
                save(state, known)
            except UsageError as error:
                log(f"{error}; until then each run does again what it does now")

        after = runner.once(before, keep)
        after.unsent = notifier.close(CLOSE_S)
        save(state, after)


def _on_and_on(table: Table, channels: list[Channel], verbose: bool) -> int:
    """Returns 128+n after signal n."""
    from ...agent.signals import STOPS, catch

    received: list[int] = []
    stop = threading.Event()
    notifier = Notifier(channels, table.pace, table.job, socket.gethostname(), log)
    runner = Runner(table, Actor(table, notifier, socket.gethostname(), log), log if verbose else _quiet)

    def stopped(signum: int) -> None:
        received.append(signum)
        stop.set()
        runner.wake()

    reading, waker = os.pipe()
    os.set_blocking(waker, False)
    give_back = catch(STOPS, stopped, waker)
    try:
        runner.run(stop)
        _report_unsent(notifier.close(CLOSE_S))
    finally:
        give_back(False)
        os.close(reading)
        os.close(waker)
    return 128 + received[0] if received else 0


def _report_unsent(unsent: dict[str, list[tuple[str, str, int]]]) -> None:
    for name, events in unsent.items():
        log(f"{name}: {sum(number for _, _, number in events)} events were not delivered; they are in the lines above")


def _test(channels: list[Channel], table: Table) -> int:
    status = 0
    node = socket.gethostname()
    for each in channels:
        text = f"A test of {PROGRAM} on {node}: this channel works."
        try:
            each.send(Message(f"[{table.job or 'job'}] test", text, table.job, node, ((text, 1),), 1))
            click.echo(f"{each.name}: delivered")
        except NotDelivered as error:
            click.echo(f"{each.name}: {error}")
            status = 1
    return status


def main(argv: Sequence[str] | None = None) -> None:
    """The program. Ends the process with 0, with 2 for a wrong call, with 74 where its answer cannot be printed, with
    128+n after signal n."""
    open_closed_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    command: click.Command = advise if arguments[:1] == ["advise"] else watch
    if command is advise:
        arguments = arguments[1:]
    try:
        command.main(arguments, prog_name=PROGRAM if command is watch else f"{PROGRAM} advise")
    except UsageError as error:
        click.echo(f"{PROGRAM}: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        fail(f"cannot print or read: {error.strerror}; make room, or look at the file", UNWRITTEN, PROGRAM)
