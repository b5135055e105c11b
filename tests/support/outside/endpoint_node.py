"""`endpoint_node.py ENDPOINT`: the node of the endpoint of a c10d store. It begins the job `one` there and prints that
it hosts it; with `again`, unless it is told within `WAITED_S` that the job goes on elsewhere. Then it waits."""

from __future__ import annotations

import signal
import sys
import threading
import time

from elastic_agent.agent.worker_store.in_thread import ServerThread
from elastic_agent.rendezvous.c10d.addressed import Opening, open_addressed
from elastic_agent.rendezvous.c10d.keys import Keys
from elastic_agent.rendezvous.c10d.one_endpoint import OneEndpoint
from elastic_agent.rendezvous.c10d.opening import Hosting
from elastic_agent.rendezvous.endpoint import parse_endpoint
from elastic_agent.rendezvous.store import Store, StoreElsewhere

LEASE_S = 5.0
WAITED_S = 12.0
"""Longer than `quiet`, as a host on a busy machine is told later."""


def opening(node: str, hosts: bool) -> Opening:
    """As the agent `node` opens the store; what of that a test wants otherwise it replaces."""

    def join(store: Store) -> None:
        store.write_job(node.encode())

    return Opening(
        node=node,
        start=ServerThread,
        told=[],
        is_host=hosts,
        connect_timeout_s=60.0,
        cancelled=threading.Event(),
        join=join,
        on_wait=None,
        hosting=Hosting(shared=True),
    )


def main(endpoint: str, waits: bool) -> None:
    store = open_addressed(OneEndpoint(parse_endpoint(endpoint), Keys("one"), LEASE_S), "one", opening("old", True))
    until = time.monotonic() + (WAITED_S if waits else 0.0)
    try:
        while time.monotonic() < until:
            store.beat("old", 1)
            threading.Event().wait(0.1)
        store.found()
        print("hosts", flush=True)
    except StoreElsewhere:
        print("told", flush=True)
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], "again" in sys.argv)
