"""Which agents a command of `elasticctl` is for, and the options that say so."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from . import find, views
from .asking import call_brief
from .find import Agent
from .printing import PROGRAM, printable, say

MOST = (1 << 31) - 1
"""The largest number of a request."""
RANK_MAX = 999_999_999
NUMBER = click.IntRange(-MOST, MOST)
Command = TypeVar("Command", bound=Callable[..., Any])


def ranks_named(words: Sequence[str]) -> list[int]:
    """The ranks of a command line. Raises BadParameter for what is none."""
    wrong = [word for word in words if not (word.isascii() and word.isdigit() and len(word) <= len(str(RANK_MAX)))]
    if wrong:
        raise click.BadParameter(f"{wrong[0]!r} is no rank; give a number from 0 to {RANK_MAX}")
    return [int(word) for word in words]


class Chosen:
    """Which agents a command is for."""

    def __init__(self, address: str, job: str, node: str) -> None:
        self.address, self.job, self.node = address, job, node

    def agents(self) -> list[Agent]:
        """Those of the job on this host, or the one that is named. Says on stderr which do not answer. Raises
        NotFound."""
        found, silent = find.of_job(self.address, self.job)
        for line in silent:
            say(f"{PROGRAM}: {line}", err=True)
        return [find.one(found, self.node)] if self.node else found

    def checkpoints(self) -> str:
        """The directory of the job's checkpoints. Raises BadParameter where it has none, or none that is seen here."""
        found = str(call_brief(find.best(self.agents()).path, "Job")["checkpoints"])
        if not found:
            raise click.BadParameter("the job that runs here was started without --exact-resume; give a directory")
        if not os.path.isdir(found):
            raise click.BadParameter(f"the job's directory of checkpoints is not on this host: {printable(found)}")
        return found

    def having(self, ranks: Sequence[int]) -> list[Agent]:
        """Those of them, or on other hosts, that run one of these ranks; all on any host where no rank is named. Raises
        NotFound."""
        if not ranks:
            return self.everywhere()
        found = self.agents()
        if here := views.having(found, ranks):
            return here
        return find.of_ranks(found, ranks)

    def everywhere(self) -> list[Agent]:
        """Those of this host, and those of others whose agents have a --control-address; or the one that is named. Says
        on stderr which do not answer. Raises NotFound."""
        found = self.agents()
        if self.node or self.address:
            return found
        known, silent = find.everywhere(found)
        for line in silent:
            say(f"{PROGRAM}: {line}", err=True)
        return known


def as_json(command: Command) -> Command:
    """The option --json."""
    return click.option("--json", "in_json", is_flag=True, help="Print the answer as JSON.")(command)


def because(command: Command) -> Command:
    """The option --reason."""
    return click.option("-m", "--reason", default="", help="Why; shown in the log and the last line of each agent.")(
        command
    )


def choosing(command: Command) -> Command:
    """The options that say which agents."""
    file = click.Path(exists=True, dir_okay=False)
    for option in (
        click.option("--tls-name", envvar="ELASTICCTL_TLS_NAME", default="", help="The host's name in agents' "
                     "certificates, where it is not that of the address. [$ELASTICCTL_TLS_NAME]"),
        click.option("--ca-file", envvar="ELASTICCTL_CA_FILE", type=file, help="Certificates of the CA that has "
                     "signed those of agents on other hosts, in PEM. [$ELASTICCTL_CA_FILE]"),
        click.option("--token-file", envvar="ELASTICCTL_TOKEN_FILE", type=file, help="The token for agents on other "
                     "hosts. [$ELASTICCTL_TOKEN_FILE]"),
        click.option("--job", metavar="ID", default="", help="The job's run id, where several jobs run here."),
        click.option("--node", metavar="NODE", default="", help="Only this node, here or on another host whose agent "
                     "has a --control-address."),
        click.option("--address", metavar="SOCKET|HOST:PORT", default="", help="One agent, instead of looking for "
                     "those of this host."),
    ):  # fmt: skip
        command = option(command)
    return command


def show_credentials(token_file: str | None, ca_file: str | None, tls_name: str) -> None:
    """Keep what agents on other hosts are shown. Raises BadParameter for files that cannot be used."""
    if not (token_file or ca_file or tls_name):
        return
    from .remote import CREDENTIALS

    if token_file:
        with open(token_file, encoding="utf-8", errors="replace") as file:
            words = file.read().split()
        if len(words) != 1 or not words[0].isascii():
            raise click.BadParameter(f"{token_file} must hold one token of ASCII, and nothing else")
        CREDENTIALS.token = words[0]
    if ca_file:
        with open(ca_file, "rb") as content:
            CREDENTIALS.ca = content.read()
    CREDENTIALS.name = tls_name
