"""Which nodes have changed, from the events of a watch and from readings of all keys."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from elastic_agent.rendezvous.codec.limits import FEW_NODES
from elastic_agent.rendezvous.etcd.client import EtcdClient
from elastic_agent.rendezvous.etcd.keys import PREFIX, EtcdKeys
from elastic_agent.rendezvous.etcd.ops import Change, Found, Item, Read
from elastic_agent.rendezvous.etcd.watch_cache import GATHER_S, NodeRecords

KEYS = EtcdKeys(PREFIX, "job")
NODES = ("a", "b/c", "d", "e")


class Servers:
    """The keys of a job, as a server would keep them; a client that reads them."""

    def __init__(self) -> None:
        self.revision = 0
        self.items: dict[bytes, Item] = {}

    def put(self, node: str, is_record: bool) -> Change:
        self.revision += 1
        key = KEYS.record(node) if is_record else KEYS.live(node)
        self.items[key] = Item(key, b"%d" % self.revision, 0, self.revision, 1, 0)
        return Change(self.items[key], deleted=False)

    def end_lease(self, node: str) -> Change:
        self.revision += 1
        key = KEYS.live(node)
        self.items.pop(key, None)
        return Change(Item(key, b"", 0, self.revision, 0, 0), deleted=True)

    def read(self, read: Read) -> Found:
        found = [item for key, item in sorted(self.items.items()) if key.startswith(read.key)]
        return Found(self.revision, tuple(found), more=False)

    def changed_at(self, node: str) -> int:
        """The newest revision of a key that there is."""
        keys = (KEYS.record(node), KEYS.live(node))
        return max((self.items[key].mod_revision for key in keys if key in self.items), default=0)


STEPS = st.lists(st.tuples(st.sampled_from(["record", "lease", "end", "reread"]), st.sampled_from(NODES)), max_size=30)


@given(STEPS, st.data())
def test_a_cursor_is_given_each_node_that_changed_behind_it(steps: list[tuple[str, str]], data: st.DataObject) -> None:
    """Whatever came by the watch, and whatever was read again with changes that the watch never delivered. The end of a
    lease counts where the view had seen that lease."""
    servers, view = Servers(), NodeRecords(KEYS)
    client = cast("EtcdClient", servers)
    watching, leased, ended = True, set[str](), dict[str, int]()

    def read() -> None:
        view.read(client)
        has_lease = {node for node in NODES if KEYS.live(node) in servers.items}
        ended.update(dict.fromkeys(leased - has_lease, servers.revision))
        leased.clear()
        leased.update(has_lease)

    for what, node in steps:
        if what == "reread":
            read()
            watching = True
            continue
        if what == "end" and KEYS.live(node) not in servers.items:
            continue  # no event
        change = servers.end_lease(node) if what == "end" else servers.put(node, what == "record")
        watching = watching and data.draw(st.booleans(), "the watch goes on")
        if not watching:
            continue
        view.apply(change)
        if what == "lease":
            leased.add(node)
        elif what == "end":
            leased.discard(node)
            ended[node] = servers.revision
    read()
    cursor = data.draw(st.integers(0, servers.revision), "cursor")
    changed = {node: max(servers.changed_at(node), ended.get(node, 0)) for node in NODES}
    expected = [node for node in NODES if changed[node] > cursor and KEYS.record(node) in servers.items]
    found = view.since(cursor)
    if found is None:
        assert not expected
        return
    newest, records = found
    assert records == {node: servers.items[KEYS.record(node)].value for node in expected}
    assert newest == max(changed[node] for node in expected)
    assert view.since(newest) is None


def test_nodes_are_given_in_the_order_of_their_changes() -> None:
    """The coordinator counts nodes that it sees at once as if they had come in this order."""
    servers, view = Servers(), NodeRecords(KEYS)
    for node in reversed(NODES):
        servers.put(node, is_record=True)
    view.read(cast("EtcdClient", servers))
    found = view.since(0)
    assert found is not None
    assert list(found[1]) == list(reversed(NODES))
    view.apply(servers.put("d", is_record=True))
    assert view.since(found[0]) == (servers.revision, {"d": b"%d" % servers.revision})


def test_changes_gather_where_there_are_many_nodes_alone() -> None:
    """A job of few nodes restarts in 0.03 s: none of its changes may wait."""
    servers, view = Servers(), NodeRecords(KEYS)
    for number in range(FEW_NODES):
        view.apply(servers.put(f"n{number}", is_record=True))
    assert not view.gather_s
    view.apply(servers.put("one more", is_record=True))
    assert view.gather_s == GATHER_S
