"""Garbage that a stranger writes into the job's store: ignored where nobody needs it, and otherwise one line."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.harness import Cluster
from support.procfs import slowed
from support.rigs.command_line import SOON_S, assert_one_line, at, elastic_agent
from support.rigs.torch_store import TorchStore


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


class Spoiled:
    """A running job of two nodes on c10d, and a foreign client that writes to its store."""

    def __init__(self, folder: Path, foreign: TorchStore) -> None:
        self.cluster = Cluster("c10d", folder, nnodes="1:2", conf={"beat": 0.3, "lease": 4})
        self.endpoint = self.cluster.endpoint
        self.crater = folder / "crater"
        self.foreign = foreign
        try:
            self.a = self.cluster.start("a")
            self.a.wait_text("round 1 ")
            self.b = self.cluster.start("b")
            self.world = self.cluster.desk.wait_world(2)
            self.foreign.join(int(self.endpoint.rpartition(":")[2]))
        except BaseException:
            self.close()
            raise
        self.under = "elastic_agent/contract/1/"

    def garbage(self) -> list[bytes]:
        """Bytes of several kinds, none of which an agent writes."""
        return [b"\xde\xad\xbe\xef", b"hello", b"", b"\x00" * 4096, pickle.dumps(Bomb(self.crater))]

    def spoil(self, key: str, value: bytes) -> None:
        self.foreign.set(key, value)

    def nodes(self) -> list[str]:
        """The identities of the two nodes, from the notifications that they left."""
        head = int(self.foreign.get(self.under + "log/head"))
        return sorted({self.foreign.get(f"{self.under}log/{n}").decode() for n in range(1, head + 1)})

    def version(self) -> int:
        """The newest version announced."""
        return int(self.foreign.get(self.under + "round/head"))

    def assert_goes_on(self) -> None:
        """A worker fails, both nodes run another round, and all succeed; no worker of the old round is left."""
        self.world[0].order("exit 3")
        again = self.cluster.desk.wait_world(2, after=self.world[0].round)
        for worker in again:
            worker.order("exit 0")
        assert [node.wait() for node in (self.a, self.b)] == [0, 0]
        self.assert_clean()

    def assert_ends(self, *parts: str) -> None:
        """Both agents exit 80 within 10 s, with all of `parts` in the last line, and their workers are gone."""
        deadline = time.monotonic() + slowed(SOON_S)
        for node in (self.a, self.b):
            code = node.wait(max(0.1, deadline - time.monotonic()))
            last = node.text().splitlines()[-1]
            assert code == 80, self.a.text() + node.text()
            assert [part for part in parts if part not in last] == [], self.a.text() + node.text()
        self.cluster.desk.wait_gone(self.world)
        self.assert_clean()

    def assert_clean(self) -> None:
        """No traceback of ours, and no foreign pickle was loaded."""
        for node in (self.a, self.b):
            assert "Traceback" not in node.text(), node.text()
            assert "mistake" not in node.text(), node.text()
        assert not self.crater.exists()

    def close(self) -> None:
        self.foreign.leave()
        self.cluster.close()


@pytest.fixture
def spoiled(foreign: TorchStore, tmp_path: Path) -> Iterator[Spoiled]:
    made = Spoiled(tmp_path, foreign)
    yield made
    made.close()


def test_garbage_in_keys_that_running_nodes_do_not_need_is_ignored(spoiled: Spoiled) -> None:
    """The job goes on with garbage in records, heartbeats, notifications, old announcements, and keys that only new
    nodes read."""
    version = spoiled.version()
    keys = [f"node/{spoiled.nodes()[0]}", f"beat/{spoiled.nodes()[1]}", "node/stranger", "beat/stranger", "log/1"]
    keys += [f"round/{version}", "round/0", "unheard/of", ""]
    for value in spoiled.garbage():
        for key in keys:
            spoiled.spoil(spoiled.under + key, value)
        for key in ("served", "contract/job", "contract/life", "contract"):
            spoiled.spoil(f"elastic_agent/{key}", value)
        spoiled.spoil("elastic_agent", value)
    spoiled.assert_goes_on()


def test_garbage_in_a_record_that_a_notification_names_is_ignored_with_one_line(spoiled: Spoiled) -> None:
    """The host prints whose record it ignores, once for each notification; the job goes on."""
    for node in (spoiled.nodes()[0], "stranger"):
        line, tries = f"record of node {node!r} in the store cannot be read and is ignored", 0
        # A heartbeat of the node, one a second, may write its record again before the host has read it.
        while line not in spoiled.a.text() and tries < 6:
            tries += 1
            number = spoiled.foreign.add(spoiled.under + "log/head", 1)
            spoiled.spoil(f"{spoiled.under}node/{node}", pickle.dumps(Bomb(spoiled.crater)))
            spoiled.spoil(f"{spoiled.under}log/{number}", node.encode())
            with suppress(AssertionError):
                spoiled.a.wait_text(line, 10.0)
        spoiled.a.wait_text(line, 0.0)
    assert spoiled.a.text().count("cannot be read and is ignored") == 2
    spoiled.assert_goes_on()


def test_garbage_in_numbers_of_later_notifications_is_skipped(spoiled: Spoiled) -> None:
    """A foreign client takes the numbers that would be next; the nodes use later ones."""
    head = int(spoiled.foreign.get(spoiled.under + "log/head"))
    for ahead, value in enumerate(spoiled.garbage(), start=1):
        spoiled.spoil(f"{spoiled.under}log/{head + ahead}", value)
    spoiled.assert_goes_on()


@pytest.mark.parametrize(
    ("key", "value"),
    [("log/head", b"\xde\xad"), ("log/head", b"0"), ("round/head", b""), ("round/head", b"99999999999999999999")],
)
def test_garbage_in_a_counter_ends_every_agent(key: str, value: bytes, spoiled: Spoiled) -> None:
    """Without the counters there is no agreement on a round: all exit 80, with the key."""
    spoiled.spoil(spoiled.under + key, value)
    spoiled.assert_ends(f"key {spoiled.under}{key} holds", "another program writes to this store", "another port")


def test_a_spoiled_host_without_other_nodes_ends_too(foreign: TorchStore, tmp_path: Path) -> None:
    """A host that is alone does not wait for other nodes to read the store: it exits 80 within 10 s, and its worker is
    gone."""
    cluster = Cluster("c10d", tmp_path, nnodes="1")
    try:
        node = cluster.start("a")
        (worker,) = cluster.desk.wait_world(1)
        foreign.join(int(cluster.endpoint.rpartition(":")[2]))
        foreign.set("elastic_agent/contract/1/round/head", b"\xde\xad")
        assert node.wait(slowed(SOON_S)) == 80
        cluster.desk.wait_gone([worker])
        assert "key elastic_agent/contract/1/round/head holds" in node.text().splitlines()[-1]
        foreign.leave()
    finally:
        cluster.close()


def test_garbage_in_the_next_announcement_ends_every_agent(spoiled: Spoiled) -> None:
    """The key of the coordinator's next announcement holds something else: all exit 80, with the key."""
    number = spoiled.version() + 1
    spoiled.spoil(f"{spoiled.under}round/{number}", pickle.dumps(Bomb(spoiled.crater)))
    spoiled.assert_ends(f"round/{number}", "another program writes to this store", "another port")


def test_garbage_in_a_key_that_only_new_nodes_read_refuses_only_a_new_node(
    spoiled: Spoiled, script: str, tmp_path: Path
) -> None:
    """The host's mark holds something else: a node that arrives exits 80 with what it holds; the others go on."""
    spoiled.spoil("elastic_agent/served", b"\x80\x05 nothing of ours")
    port = int(spoiled.endpoint.rpartition(":")[2])
    done = elastic_agent(*at(port, is_host=0), "--rdzv-id", "contract", script, cwd=tmp_path)
    assert_one_line(done, 80, f"127.0.0.1:{port}", "nothing of ours", "'contract'")
    spoiled.assert_goes_on()


def test_garbage_in_the_jobs_record_refuses_only_a_new_node(spoiled: Spoiled, script: str, tmp_path: Path) -> None:
    """A node that arrives exits 80 with the job's id; the others go on, and at the end the host prints a line too."""
    spoiled.spoil("elastic_agent/contract/job", pickle.dumps(Bomb(spoiled.crater)))
    port = int(spoiled.endpoint.rpartition(":")[2])
    done = elastic_agent(*at(port, is_host=0), "--rdzv-id", "contract", script, cwd=tmp_path)
    assert done.code == 80
    assert "record of job 'contract' cannot be read" in done.err.splitlines()[-1]
    spoiled.assert_goes_on()
    assert "another program changed the job's record in the store" in spoiled.a.text()


def test_a_node_with_another_run_id_is_refused_with_both(spoiled: Spoiled, script: str, tmp_path: Path) -> None:
    """A node of another job exits 80 with both run ids; the job at the endpoint goes on."""
    port = int(spoiled.endpoint.rpartition(":")[2])
    done = elastic_agent(*at(port, is_host=0), "--rdzv-id", "other", script, cwd=tmp_path)
    assert_one_line(done, 80, f"127.0.0.1:{port}", "'contract'", "'other'", "--rdzv-id")
    spoiled.assert_goes_on()
