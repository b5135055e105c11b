"""The etcd client on one real server, of each supported version."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from elastic_agent.proto import etcd_pb2 as pb
from elastic_agent.rendezvous.etcd import client as client_module
from elastic_agent.rendezvous.etcd.client import EtcdClient
from elastic_agent.rendezvous.etcd.errors import EtcdClosed, EtcdCompacted, EtcdLeaseGone, EtcdUnknown
from elastic_agent.rendezvous.etcd.ops import Compare, Delete, Found, Put, Read, holds, is_absent, is_unchanged
from elastic_agent.rendezvous.etcd.streams import LongStream
from elastic_agent.rendezvous.store import StoreError
from support.etcd_servers import Servers, serving

BOUND_S = 30.0
"""What must happen at once may take this long on a busy host."""


@pytest.fixture
def client(one: Servers) -> Iterator[EtcdClient]:
    """A client of an empty server."""
    with closing(one.client()) as made:
        made.delete(Delete(b"", prefix=True))
        yield made


def test_a_key_has_its_value_revisions_and_version(client: EtcdClient) -> None:
    """After two puts."""
    first = client.put(Put(b"k", b"1"))
    second = client.put(Put(b"k", b"2"))
    [item] = client.read(Read(b"k")).items
    assert (item.value, item.create_revision, item.mod_revision, item.version) == (b"2", first, second, 2)


def test_a_prefix_reads_exactly_the_keys_that_begin_with_it(client: EtcdClient) -> None:
    """Also where the prefix ends with the greatest byte, and where it is empty."""
    for key in (b"a", b"a/1", b"a/2", b"a0", b"b\xff", b"b\xff\xff1", b"c"):
        client.put(Put(key, b""))
    assert [item.key for item in client.read(Read(b"a/", prefix=True)).items] == [b"a/1", b"a/2"]
    assert [item.key for item in client.read(Read(b"b\xff", prefix=True)).items] == [b"b\xff", b"b\xff\xff1"]
    assert len(client.read(Read(b"", prefix=True)).items) == 7


def test_a_read_can_be_limited_to_changes_or_to_a_past_revision(client: EtcdClient) -> None:
    """`changed_since` names the oldest revision of interest; `revision` reads the past."""
    client.put(Put(b"k/1", b""))
    before = client.read(Read(b"k/", prefix=True)).revision
    client.put(Put(b"k/2", b""))
    changed = client.read(Read(b"k/", prefix=True, changed_since=before + 1))
    assert [item.key for item in changed.items] == [b"k/2"]
    assert [item.key for item in client.read(Read(b"k/", prefix=True, revision=before)).items] == [b"k/1"]


def test_a_list_longer_than_an_answer_may_be_is_read_in_pages(client: EtcdClient) -> None:
    """A client accepts 64 MiB in one answer. A job of 1,742 nodes whose workers all failed has more."""
    for number in range(70):
        client.put(Put(b"k/%02d" % number, bytes(1024 * 1024)))
    found = client.read(Read(b"k/", prefix=True))
    assert [item.key for item in found.items] == [b"k/%02d" % number for number in range(70)]
    assert sum(len(item.value) for item in found.items) == 70 * 1024 * 1024
    assert not found.more


@pytest.mark.parametrize("compacts", [False, True])
def test_all_pages_of_a_list_are_of_one_revision(
    compacts: bool, client: EtcdClient, one: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though others write, and compact, between two pages."""
    monkeypatch.setattr(client_module, "PAGE_ITEMS", 2)
    for number in range(5):
        client.put(Put(b"k/%d" % number, b"old"))
    pages = 0
    read_page = client._read_page

    def read_page_and_write(read: Read, request: pb.RangeRequest) -> Found:
        nonlocal pages
        found = read_page(read, request)
        pages += 1
        if pages == 1:
            client.txn([], [Put(b"k/3", b"new"), Put(b"k/9", b"new")])
            if compacts:
                one.compact()
        return found

    monkeypatch.setattr(client, "_read_page", read_page_and_write)
    found = client.read(Read(b"k/", prefix=True))
    values = {item.key: item.value for item in found.items}
    assert set(values.values()) == ({b"old", b"new"} if compacts else {b"old"})
    assert (b"k/9" in values) is compacts
    assert found.revision == client.read(Read(b"k/0")).revision - (0 if compacts else 1)


def test_a_transaction_writes_only_if_all_compares_hold(client: EtcdClient) -> None:
    """Compares of absence, value, revision, version and lease; a failed transaction returns the current keys."""
    assert client.txn([is_absent(b"k")], [Put(b"k", b"1")]).succeeded
    lost = client.txn([is_absent(b"k")], [Put(b"k", b"2")], [Read(b"k")])
    assert not lost.succeeded
    assert lost.found[0].items[0].value == b"1"
    here = lost.found[0].items[0].mod_revision
    assert not client.txn([holds(b"k", b"1"), is_unchanged(b"k", here - 1)], [Delete(b"k")]).succeeded
    sure = [Compare(b"k", "version", "<", 2), Compare(b"k", "lease", "!=", 1), Compare(b"k", "mod_revision", ">", 0)]
    assert client.txn([holds(b"k", b"1"), is_unchanged(b"k", here), *sure], [Delete(b"k")]).succeeded
    assert not client.read(Read(b"k")).items


def test_a_watch_delivers_every_change_from_its_start_revision(client: EtcdClient) -> None:
    """Past ones too, in order, deletions included, of its prefix only."""
    begin = client.put(Put(b"k/1", b"1"))
    client.put(Put(b"other", b""))
    with closing(client.watch(b"k/", prefix=True, start_revision=begin)) as watch:
        assert [change.item.value for change in watch.wait(BOUND_S)] == [b"1"]
        assert watch.wait(0.0) == ()
        client.txn([], [Put(b"k/2", b"2"), Delete(b"k/1")])
        changes = watch.wait(BOUND_S)
        assert {(change.item.key, change.deleted) for change in changes} == {(b"k/2", False), (b"k/1", True)}
        assert watch.next_revision == changes[-1].item.mod_revision + 1


def test_a_wait_ends_in_time_though_servers_tell_of_their_progress(tmp_path: Path) -> None:
    """Clusters of kubeadm do so every 5 s, which is more often than an agent's threads look around."""
    flags = ["--experimental-watch-progress-notify-interval", "100ms"]
    with serving("3.5", tmp_path, flags=flags) as servers, closing(servers.client()) as client:
        client.put(Put(b"k", b"1"))
        with closing(client.watch(b"k")) as watch:
            began = time.monotonic()
            assert watch.wait(1.0) == ()
            assert 1.0 <= time.monotonic() - began < BOUND_S


def test_a_stream_that_this_process_has_closed_is_not_used_again(
    one: Servers, client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an answer was late, the next attempt begins on a new one, however long the old one takes to end."""
    ends = threading.Event()
    exchange = LongStream._exchange

    async def late(stream: LongStream[Any, Any]) -> StoreError:
        while not ends.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)
        return EtcdUnknown("it has ended")

    lease = client.grant(10)
    with closing(one.client(call_s=1.0)) as hurried:
        monkeypatch.setattr(LongStream, "_exchange", late)
        with pytest.raises(EtcdUnknown):
            hurried.keep_alive(lease)
        monkeypatch.setattr(LongStream, "_exchange", exchange)
        hurried.keep_alive(lease)
        ends.set()


def test_a_watch_from_a_compacted_revision_raises_etcd_compacted(client: EtcdClient, one: Servers) -> None:
    """The changes are gone: the error names the oldest revision kept."""
    begin = client.put(Put(b"k", b"1"))
    client.put(Put(b"k", b"2"))
    kept = one.compact()
    with closing(client.watch(b"k", start_revision=begin)) as watch:
        for _ in range(2):
            with pytest.raises(EtcdCompacted, match="read anew") as caught:
                watch.wait(BOUND_S)
            assert caught.value.revision == kept
    with pytest.raises(EtcdCompacted):
        client.read(Read(b"k", revision=begin))


def test_keys_are_deleted_with_their_lease(client: EtcdClient) -> None:
    """Whether it is revoked or expires: watches deliver the deletion, and using the lease raises EtcdLeaseGone."""
    lease = client.grant(60)
    client.keep_alive(lease)
    assert 50 < client.left_s(lease) <= 60 == lease.ttl_s
    client.put(Put(b"k", b"", lease.id))
    with closing(client.watch(b"k")) as watch:
        client.revoke(lease)
        client.revoke(lease)
        assert watch.wait(BOUND_S)[0].deleted
        short = client.grant(1)
        client.put(Put(b"k", b"", short.id))
        deadline = time.monotonic() + BOUND_S
        while not any(change.deleted for change in watch.wait(deadline - time.monotonic())):
            assert time.monotonic() < deadline
    for gone in (lease, short):
        with pytest.raises(EtcdLeaseGone):
            client.keep_alive(gone)
        with pytest.raises(EtcdLeaseGone):
            client.left_s(gone)
        with pytest.raises(EtcdLeaseGone):
            client.put(Put(b"k", b"", gone.id))


def test_heartbeats_share_one_stream(one: Servers, client: EtcdClient) -> None:
    """Opening one costs a server four times what a renewal on an open one does, and there are a thousand a second."""
    streams = 'grpc_server_started_total{grpc_method="LeaseKeepAlive"'
    lease, before = client.grant(60), one.counted(streams)
    for _ in range(20):
        client.keep_alive(lease)
    assert one.counted(streams) == before + 1
    assert 50 < client.left_s(lease) <= 60
    client.revoke(lease)


def test_closing_from_another_thread_ends_a_wait_at_once(client: EtcdClient) -> None:
    """So an agent can stop at once. Another session of the same client goes on."""
    session = client.session()
    watch = session.watch(b"k")
    closer = threading.Timer(0.2, session.close)
    closer.start()
    started = time.monotonic()
    with pytest.raises(EtcdClosed):
        watch.wait(60.0)
    assert time.monotonic() - started < BOUND_S / 2
    closer.join()
    with pytest.raises(EtcdClosed):
        session.read(Read(b"k"))
    assert client.put(Put(b"k", b""))


def test_health_reports_version_and_leader(client: EtcdClient, one: Servers) -> None:
    """And no errors and no alarms, on a healthy server."""
    health = client.health()
    assert health.version.startswith(one.members[0].binaries.version)
    assert health.leader == health.member
    assert not health.errors
    assert client.alarms() == ()
