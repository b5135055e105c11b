"""Why an endpoint cannot be reached, by connections of our own."""

from __future__ import annotations

import socket
from contextlib import closing
from threading import Thread

import pytest

from elastic_agent.rendezvous.endpoint import Address, Endpoint
from elastic_agent.rendezvous.etcd import diagnosis
from elastic_agent.rendezvous.etcd.cluster import EtcdCluster, Server
from elastic_agent.rendezvous.etcd.errors import EtcdFailed
from elastic_agent.rendezvous.etcd.retries import Calls
from support.network import free_ports


def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `localhost` has two, and a server listens on one: the first refuses, and the second says what is wrong."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"SSH-2.0-server\r\n")
                connection.recv(1)

        [refusing] = free_ports(1)
        found: list[Address] = [(socket.AF_INET, ("127.0.0.1", port)) for port in (refusing, listener.getsockname()[1])]
        monkeypatch.setattr(diagnosis, "resolve", lambda endpoint: found)
        monkeypatch.setattr(diagnosis, "_answers_tls", lambda endpoint: False)
        serving = Thread(target=answer, daemon=True)
        serving.start()
        why = diagnosis.explain(Endpoint("two.example", 1), None, "read")
        serving.join()
    assert why.startswith("two.example:1 is not etcd: it answered b'SSH-2.0-server")


def test_where_each_server_can_be_reached_grpc_says_why_it_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may resolve a name otherwise than the system does, or they answer again by now."""

    def attempt(server: Server, timeout_s: float) -> None:
        raise EtcdFailed(f"etcd at {server}, read: failed to connect to all addresses; ipv4:127.0.0.5:1: refused")

    monkeypatch.setattr(Calls, "_explain_all", lambda calls, what: [""])
    calls = Calls(EtcdCluster([Endpoint("two.example", 1)]), call_s=0.1)
    with closing(calls), pytest.raises(EtcdFailed, match=r"two\.example:1, read: .*127\.0\.0\.5:1: refused; gave up"):
        calls.retry(attempt, "read")
