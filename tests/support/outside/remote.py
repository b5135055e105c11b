"""Asks agents over TCP, as a program on another host would: gRPC with TLS and a token."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from elastic_agent.proto import control_pb2, health_pb2
from support.etcd_certificates import Certificates
from support.network import free_port

READS, WRITES = "only-reads-0123456789", "may-write-0123456789"
CONTROL, HEALTH = "elastic.control.v1.Control", "grpc.health.v1.Health"
BOUND_S = 120.0


class Door:
    """Certificates and tokens of agents of a test, and an address on this host for each."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.certificates = Certificates(folder)
        self.cert, self.key = self.certificates.issue("agent")
        self.tokens = folder / "tokens"
        self.tokens.write_text(f"# who may ask\ngrafana read {READS}\noncall write {WRITES}\n")
        self.tokens.chmod(0o600)
        for name, token in (("read", READS), ("write", WRITES)):
            (folder / name).write_text(f"{token}\n")
        self.env = {"ELASTICCTL_CA_FILE": str(self.certificates.ca_file)}
        """Of elasticctl; the token is in `token_file`."""
        self.token_file = str(folder / "write")

    def flags(self, address: str) -> tuple[str, ...]:
        files = ("--control-cert", str(self.cert), "--control-key", str(self.key), "--control-tokens", str(self.tokens))
        return ("--control-address", address, *files)

    def address(self) -> str:
        return f"127.0.0.1:{free_port()}"

    def channel(self, address: str, *options: tuple[str, Any]) -> grpc.Channel:
        tls = grpc.ssl_channel_credentials(self.certificates.ca_file.read_bytes())
        return grpc.secure_channel(address, tls, options=[("grpc.enable_http_proxy", 0), *options])


def ask(channel: grpc.Channel, method: str, token: str = WRITES, **fields: Any) -> Any:
    """One answer. Waits for the server to come up."""
    contract = control_pb2.DESCRIPTOR.services_by_name["Control"].methods_by_name[method]
    request, answer = (getattr(control_pb2, each.name) for each in (contract.input_type, contract.output_type))
    call: Any = channel.unary_unary(f"/{CONTROL}/{method}", request.SerializeToString, answer.FromString)
    return call(request(**fields), metadata=headers(token), timeout=BOUND_S, wait_for_ready=True)


def stream(channel: grpc.Channel, method: str, token: str = WRITES, **fields: Any) -> Any:
    """The messages of a stream, and the call."""
    contract = control_pb2.DESCRIPTOR.services_by_name["Control"].methods_by_name[method]
    request, answer = (getattr(control_pb2, each.name) for each in (contract.input_type, contract.output_type))
    call: Any = channel.unary_stream(f"/{CONTROL}/{method}", request.SerializeToString, answer.FromString)
    return call(request(**fields), metadata=headers(token), timeout=120, wait_for_ready=True)


def headers(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),) if token else ()


def health(channel: grpc.Channel, service: str = "") -> int:
    """The status of the standard health service, which asks for no token."""
    request, answer = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
    call: Any = channel.unary_unary(f"/{HEALTH}/Check", request.SerializeToString, answer.FromString)
    found = call(request(service=service), timeout=BOUND_S, wait_for_ready=True)
    return int(found.status)


def health_changes(channel: grpc.Channel, service: str) -> Iterator[int]:
    request, answer = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
    call: Any = channel.unary_stream(f"/{HEALTH}/Watch", request.SerializeToString, answer.FromString)
    for found in call(request(service=service), timeout=60, wait_for_ready=True):
        yield int(found.status)


def wait_working(channel: grpc.Channel) -> Any:
    """The first status of an agent whose workers run."""
    deadline = time.monotonic() + BOUND_S
    while (found := ask(channel, "Status")).phase != "working":
        assert time.monotonic() < deadline, found
    return found
