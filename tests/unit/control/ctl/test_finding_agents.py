"""Which sockets of this host `elasticctl` asks, and how long it waits for those that say nothing."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from elastic_agent.control import control_socket
from elastic_agent.control.ctl import call, find
from support.procfs import slowed

OTHER = 61_001


class Host:
    """Sockets of agents that listen and never answer."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.listening: list[socket.socket] = []

    def agent(self, name: str) -> str:
        folder = self.base / name
        folder.mkdir(parents=True)
        path = str(folder / control_socket.SOCKET)
        made = socket.socket(socket.AF_UNIX)
        made.bind(path)
        made.listen()
        self.listening.append(made)
        return path


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    made = Host(tmp_path / "base")
    monkeypatch.setenv(control_socket.VARIABLE, str(made.base))
    yield made
    for each in made.listening:
        each.close()


def test_agents_that_stand_still_are_waited_for_together(host: Host) -> None:
    """Eight of them as long as one."""
    paths = [host.agent(f"{number}-a") for number in range(1, 9)]
    began = time.monotonic()
    found, silent = find.agents()
    assert time.monotonic() - began < slowed(call.ANSWER_S + 2)
    assert found == []
    assert sorted(silent) == [f"{path}: no answer to Status in 3 s; the agent may be frozen" for path in paths]


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """`os` as the module sees it, so that a test can say who asks."""
    made = SimpleNamespace(**vars(os))
    monkeypatch.setattr(find, "os", made)
    return made


def owned(system: SimpleNamespace, owners: dict[str, int]) -> None:
    """By path, who owns what; nobody but root could make it so."""

    def look(path: str) -> os.stat_result:
        found = [*os.lstat(path)]
        found[4] = owners[path]
        return os.stat_result(found)

    system.stat = system.lstat = look


@pytest.mark.parametrize(
    ("me", "of_socket", "of_folder", "of_base", "says"),
    [
        (7, 7, 7, 7, ""),
        (7, 0, 0, 0, ""),
        (7, OTHER, 7, 7, "it belongs to user 61001"),
        (7, OTHER, OTHER, OTHER, "it belongs to user 61001"),
        (7, 7, OTHER, 7, "its directory belongs to user 61001, and it to user 7"),
        (0, OTHER, OTHER, OTHER, ""),
        (0, OTHER, OTHER, 7, "its directory belongs to user 7, and it to user 61001"),
        (0, 0, OTHER, OTHER, "its directory belongs to user 61001, and it to user 0"),
    ],
)
def test_only_sockets_of_this_user_and_of_root_are_asked_and_root_asks_each_users_own(
    host: Host, system: SimpleNamespace,
    me: int, of_socket: int, of_folder: int, of_base: int, says: str,
) -> None:  # fmt: skip
    path = host.agent("1-a")
    owned(system, {path: of_socket, os.path.dirname(path): of_folder, str(host.base): of_base})
    system.geteuid = lambda: me
    assert [find.distrusted(each) for each in find.sockets()] == [says]
    if says:
        assert find.agents() == ([], [f"{path}: {says}; name it by --address to ask it"])


def test_a_directory_under_tmp_that_is_named_for_another_user_is_not_asked(
    system: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may make one, before the user whose name it has. One that the variable names may be called anything."""
    monkeypatch.delenv(control_socket.VARIABLE, raising=False)
    system.geteuid = lambda: 0
    system.stat = system.lstat = lambda path: os.stat("/")
    found = find.Socket("/tmp/elastic-agent-7/1-a/control.sock", owner=os.stat("/").st_uid)
    assert find.distrusted(found) == f"it belongs to user {found.owner}, and its directory is named for 7"
    monkeypatch.setenv(control_socket.VARIABLE, "/tmp/elastic-agent-7")
    assert find.distrusted(found) == ""


def test_a_job_that_two_users_have_is_asked_for_by_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them may have made its name up."""
    both = [find.Agent(f"/{owner}", {"runId": "job1", "name": "node0:1"}, owner) for owner in (7, OTHER)]
    monkeypatch.setattr(find, "agents", lambda address="": (both, []))
    with pytest.raises(find.NotFound, match="users 7 and 61001 run a job 'job1' here"):
        find.of_job("", "")


@pytest.mark.parametrize(
    "answer",
    [
        b"hello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n<html>",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnull",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
    ],
)
def test_another_programs_socket_is_no_agents(tmp_path: Path, answer: bytes) -> None:
    """As who names it by mistake learns in a line."""
    path = str(tmp_path / "other.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()

        def reply() -> None:
            with listening.accept()[0] as asked:
                asked.recv(1 << 16)
                asked.sendall(answer)

        other = threading.Thread(target=reply)
        other.start()
        try:
            assert find.agents(path) == ([], [f"{path}: {call.NO_AGENT}"])
        finally:
            other.join()
