"""The usual watches by their names, for `--watch hang,disk` instead of a file."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ...agent.errors import UsageError
from ...proto.frozen import replace
from ..notify.channels import Channel, channel
from ..table.parse import check_actions, meant, parse_table, read_table
from ..table.watch import Table

USUAL = {
    "hang": '[[watch]]\nwhat = "hang"\ndo = ["dump", "notify"]\n',
    "disk": '[[watch]]\nwhat = "disk"\nthreshold = "80 % used"\n'
    '[[watch]]\nwhat = "disk"\nthreshold = "12 hours left"\nfor = "5 min"\n',
    "inodes": '[[watch]]\nwhat = "inodes"\nthreshold = "90 % used"\n',
    "memory": '[[watch]]\nwhat = "memory"\nthreshold = "95 % used"\n'
    '[[watch]]\nwhat = "memory"\nthreshold = "30 minutes left"\nfor = "10 min"\n',
    "slow": '[[watch]]\nwhat = "slow"\nfor = "5 min"\n',
    "clock": '[[watch]]\nwhat = "clock"\nfor = "5 min"\n',
    "gpu": '[[watch]]\nwhat = "gpu"\n[[watch]]\nwhat = "gpu"\nthreshold = "xid"\n',
}


def checked_table(watch: str, notify: Iterable[str]) -> tuple[Table, list[Channel]]:
    """The table of `watch`, one without watches where that is empty, and the channels of its URLs and of these. Raises
    UsageError for a mistake in either."""
    table = table_of(watch) if watch else Table("--notify", "", ())
    table = replace(table, notify=(*table.notify, *notify))
    check_actions(table, inside=True)
    channels = [channel(url) for url in table.notify]
    for each in channels:
        each.check()
    return table, channels


def table_of(watch: str) -> Table:
    """The table of a file, or of names of usual watches with commas between. Raises UsageError."""
    names = [name.strip() for name in watch.split(",")]
    if all(name in USUAL for name in names):
        return parse_table("".join(USUAL[name] for name in names), f"--watch {watch}", inside=True)
    unknown = [name for name in names if name not in USUAL]
    if not os.path.exists(watch) and (len(unknown) < len(names) or meant(watch, USUAL)):
        hint = meant(unknown[0], USUAL)
        raise UsageError(f"--watch {watch}: {unknown[0]!r} is no usual watch; {hint}there are {', '.join(USUAL)}")
    return read_table(watch, inside=True)
