"""The agents of this host, by their control sockets."""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .. import control_socket
from .asking import ask_all, ask_all_brief
from .call import NO_AGENT, AgentUnreachable, CallRefused, Message

CONNECTION_REFUSED = "Connection refused"
LISTENS_S = 60.0
"""An agent listens on its socket at once when it has made it; only one that was frozen in between takes so long."""


class Agent(NamedTuple):
    """One agent that answers."""

    path: str
    """The path of its socket."""
    status: Message
    owner: int = -1
    """The user whose socket it is; -1: it was named, or is on another host."""

    @property
    def name(self) -> str:
        return str(self.status["name"])

    @property
    def run_id(self) -> str:
        return str(self.status["runId"])


class NotFound(Exception):
    """There is no such agent, or more than one. One line; `status`: the program's exit status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


NONE, SILENT, SEVERAL = 3, 4, 5
"""Exit statuses: no agent is found; none of those found answers; several fit."""


class Socket(NamedTuple):
    """Where an agent answers: a socket as it was found on this host, or the address that was given."""

    path: str
    made_s: float = 0.0
    """Since 1970."""
    owner: int = -1

    def is_left(self) -> bool:
        """Whether this user's socket, on which nobody listens, is an agent's that is gone: its process is, or has had
        its time to listen, whoever has its pid by now; agents of containers are all process 1."""
        return self.owner == os.geteuid() and (
            _is_left(os.path.dirname(self.path)) or time.time() - self.made_s > LISTENS_S
        )


def sockets() -> list[Socket]:
    """All sockets that may be this user's agents'; root's are those of all users. The newest first."""
    bases = control_socket.bases()
    if os.geteuid() == 0 and control_socket.VARIABLE not in os.environ:
        bases += glob.glob("/tmp/elastic-agent-*") + glob.glob("/run/user/*/elastic-agent")  # noqa: S108 - looked at only
    found = []
    for path in {path for base in bases for path in glob.glob(f"{glob.escape(base)}/*-*/{control_socket.SOCKET}")}:
        try:
            made = os.lstat(path)
        except OSError:
            continue  # its agent has just ended
        found.append(Socket(path, made.st_mtime, made.st_uid))
    return sorted(found, key=lambda each: each.made_s, reverse=True)


def agents(address: str = "") -> tuple[list[Agent], list[str]]:
    """Agents that answer, and a line for each that should and does not. A socket that nobody listens on any more is
    removed, if it is this user's."""
    found, silent = [], []
    for folder in [] if address else _without_socket():
        if _is_left(folder):
            control_socket.remove(folder)
    asked = [Socket(address)] if address else []  # an address may be HOST:PORT
    for one in [] if address else sockets():
        if trouble := distrusted(one):
            silent.append(f"{one.path}: {trouble}; name it by --address to ask it")
        else:
            asked.append(one)
    answers = ask_all_brief([each.path for each in asked], "Status")
    for each, answer in zip(asked, answers, strict=True):
        if isinstance(answer, AgentUnreachable):
            if CONNECTION_REFUSED in str(answer) and each.is_left():
                control_socket.remove(os.path.dirname(each.path))
            else:
                silent.append(str(answer))
        elif isinstance(answer, CallRefused):
            if address:
                raise answer
            silent.append(f"{each.path}: {answer}")
        elif not {"name", "runId"} <= answer.keys():
            silent.append(f"{each.path}: {NO_AGENT}")
        else:
            found.append(Agent(each.path, answer, each.owner))
    return found, silent


def distrusted(found: Socket) -> str:
    """Why this socket is not asked unless it is named; empty where it is. A user's are this user's and root's; root
    asks those of all users, each in directories of its owner, with the owner's id in a name under /tmp."""
    me, folder = os.geteuid(), os.path.dirname(found.path)
    base = os.path.dirname(folder)
    if me and found.owner not in (me, 0):
        return f"it belongs to user {found.owner}"
    try:
        owners = {os.lstat(folder).st_uid, os.stat(base).st_uid}
    except OSError as error:
        return f"its directory cannot be looked at: {error.strerror}"
    if others := owners - {found.owner, *([] if me == 0 else [me, 0])}:
        return f"its directory belongs to user {min(others)}, and it to user {found.owner}"
    _, named, owner = base.partition("/tmp/elastic-agent-")  # noqa: S108 - looked at only
    # A user looks only where its own are, and where it says so itself a name says nothing.
    if me == 0 and control_socket.VARIABLE not in os.environ and named and owner != str(found.owner):
        return f"it belongs to user {found.owner}, and its directory is named for {owner}"
    return ""


def _without_socket() -> list[str]:
    """Run directories of this user's agents that have none: an agent was killed before it had made one."""
    folders = (path for base in control_socket.bases() for path in glob.glob(f"{glob.escape(base)}/*-*"))
    return [path for path in folders if _is_empty(path)]


def _is_empty(folder: str) -> bool:
    try:
        return {*os.listdir(folder)} <= {control_socket.UNNAMED}
    except OSError:
        return False  # it has gone, or is another user's


def _is_left(folder: str) -> bool:
    """Whether the process that made this run directory is gone, and it is this user's to remove. Its name begins with
    the pid; with the processes of a container, another may have that by now, and it is left alone."""
    pid = os.path.basename(folder).partition("-")[0]
    try:
        return os.stat(folder).st_uid == os.geteuid() and not os.path.exists(f"/proc/{pid}")
    except OSError:
        return False


def of_job(address: str, job: str) -> tuple[list[Agent], list[str]]:
    """The agents of this host that run one job, and a line for each that does not answer. Raises NotFound."""
    found, silent = agents(address)
    if not found:
        if silent:
            raise NotFound(silent[0], SILENT)
        where = ", ".join(control_socket.bases()) or f"{control_socket.VARIABLE}=off"
        raise NotFound(f"no agent runs here (looked in {where}); give its socket with --address", NONE)
    jobs = {each.run_id for each in found}
    if job:
        found = [each for each in found if each.run_id == job]
        if not found:
            raise NotFound(f"no agent here runs job {job!r}; there are {', '.join(sorted(jobs))}", NONE)
    elif len(jobs) > 1:
        raise NotFound(f"agents of {len(jobs)} jobs run here: {', '.join(sorted(jobs))}; choose by --job", SEVERAL)
    if len(owners := {each.owner for each in found}) > 1:
        users = " and ".join(map(str, sorted(owners)))
        raise NotFound(
            f"users {users} run a job {found[0].run_id!r} here; ask as one of them, or choose by --address", SEVERAL
        )
    return found, silent


def one(found: list[Agent], node: str) -> Agent:
    """The one of these agents that this names: by the node's name, or its process id; any, where it is empty and there
    is one. Raises NotFound."""
    names = ", ".join(each.name for each in found)
    if not node:
        if len(found) > 1:
            raise NotFound(f"{len(found)} nodes of the job run here: {names}; name one", SEVERAL)
        return found[0]
    named = [each for each in found if node in (each.name, str(each.status["pid"]), each.name.partition(":")[0])]
    if not named and (there := elsewhere(found, lambda each: node in (each["name"], each["name"].partition(":")[0]))):
        named = there
    if not named:
        raise NotFound(
            f"node {node!r} is not on this host, and no --control-address of it is known; here are {names}; run "
            "elasticctl on its host",
            NONE,
        )
    if len(named) > 1:
        raise NotFound(f"{node!r} matches {' and '.join(each.name for each in named)}; name one", SEVERAL)
    return named[0]


def elsewhere(found: list[Agent], wanted: Callable[[Message], bool]) -> list[Agent]:
    """The agents on other hosts whose nodes are wanted, as these agents know where they answer: from the records of the
    job, so also while its store is away. Raises NotFound where one does not answer."""
    paths = list(_places(found, wanted).values())
    made = []
    for path, answer in zip(paths, ask_all_brief(paths, "Status"), strict=True):
        if isinstance(answer, AgentUnreachable):
            raise NotFound(str(answer), SILENT)
        if isinstance(answer, CallRefused):
            raise answer
        made.append(Agent(path, answer))
    return made


def everywhere(found: list[Agent]) -> tuple[list[Agent], list[str]]:
    """These agents, and those on other hosts whose addresses they know and which are not lost, asked at once; and a
    line for each of those that does not answer, or not to us."""
    known, silent = list(found), []
    places = _places(found, lambda each: each["state"] != "lost")
    answers = ask_all_brief(list(places.values()), "Status")
    for (name, path), answer in zip(places.items(), answers, strict=True):
        if isinstance(answer, Exception):
            silent.append(f"nothing of {name}: {answer}")
        else:
            known.append(Agent(path, answer))
    return known, silent


def here(found: list[Agent]) -> set[str]:
    """Names of those that were asked by a socket, so on this host."""
    return {each.name for each in found if os.sep in each.path}


def _places(found: list[Agent], wanted: Callable[[Message], bool]) -> dict[str, str]:
    """Where agents on other hosts answer, by name."""
    here = {each.name for each in found}
    places: dict[str, str] = {}
    for job in ask_all([each.path for each in found], "Job"):
        if isinstance(job, Exception):
            raise job
        for node in job["nodes"]:
            if node["name"] not in here and node.get("control") and wanted(node):
                places.setdefault(node["name"], node["control"])
    return places


def of_ranks(found: list[Agent], ranks: Sequence[int]) -> list[Agent]:
    """Those on other hosts that run one of these ranks. Raises NotFound where none is known."""

    def wanted(node: Message) -> bool:
        first = node.get("rankOffset", 0)
        return "groupRank" in node and any(first <= rank < first + node.get("nproc", 0) for rank in ranks)

    there = elsewhere(found, wanted)
    if not there:
        named = ", ".join(map(str, ranks))
        size = max(each.status["worldSize"] for each in found)
        if not size:
            raise NotFound(
                f"no round runs now, so no worker has rank {named}; elasticctl status says what is waited for", NONE
            )
        if min(ranks) >= size:
            have = "one worker, rank 0" if size == 1 else f"ranks 0 to {size - 1}"
            raise NotFound(f"there is no rank {named}: the job has {have}", NONE)
        raise NotFound(
            f"rank {named} is not on this host, and no --control-address of its node is known; run elasticctl there",
            NONE,
        )
    return there


def best(found: list[Agent]) -> Agent:
    """The one that knows most of the job: the coordinator, if it is here."""
    return max(found, key=lambda each: (each.status["coordinating"], each.status["hosting"]))
