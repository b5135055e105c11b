"""Calls of one agent on another host, by gRPC. Loaded where an address is HOST:PORT only."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# gRPC's C core reads it as it is loaded, and would write a line of its own for each handshake that fails.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

from ...proto import control_pb2
from .call import ANSWER_S, SLOW, SLOW_S, AgentUnreachable, Call, CallRefused, Message

SERVICE = "elastic.control.v1.Control"
SHOWN = ("rank", "group_rank", "local_rank", "heard_age_s", "restarts_left", "rank_offset")
"""Fields of messages in messages that are there also where they are 0; as the agent's own JSON has it."""
OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.keepalive_time_ms", 30_000),  # whoever follows has no deadline, and must notice a host that is gone
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)
ARRIVED_MAX = 64
"""Messages that wait to be taken."""
FAILED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
"""The agent has not answered; all else is an answer."""


_IN_WORDS = (
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is signed by nobody whom this host trusts; give --ca-file"),
    ("Hostname Verification", "its certificate names another host; give --tls-name, or the name as --address"),
    ("security handshaker", "--ca-file has no certificate in PEM that can be used; give another file"),
    ("WRONG_VERSION_NUMBER", "what answers there speaks no TLS; give the address of an agent's --control-address"),
    *(
        (sign, "no host of that name is found; give another --address")
        for sign in ("errors resolving", "DNS resolution")
    ),
    ("Connection refused", "nothing listens there; give the address of an agent's --control-address"),
)
"""What gRPC's texts hold where no connection was made, and what it means."""


def in_words(details: str) -> str:
    """Why an agent cannot be reached, of gRPC's text for it."""
    return next((text for sign, text in _IN_WORDS if sign in details), details)


@dataclass
class Credentials:
    """What is shown to agents on other hosts."""

    token: str = ""
    ca: bytes | None = None
    """Who has signed their certificates, in PEM; None: whom this system trusts."""
    name: str = ""
    """The host that their certificates name; empty: that of the address."""


CREDENTIALS = Credentials()


class RemoteCall(Call):
    """As `Call`; a thread takes what arrives, and a descriptor says that there is some."""

    def __init__(self, path: str, method: str, fields: Mapping[str, Any] | None = None) -> None:
        """Does not wait; an agent that is not there is known with the first message."""
        self.path, self.method, self.ended = path, method, False
        self.limit_s = SLOW_S if method in SLOW else ANSWER_S
        self._arrived: deque[Message | Exception | None] = deque()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Condition()
        self._closed = False
        contract = control_pb2.DESCRIPTOR.services_by_name["Control"].methods_by_name[method]
        request, answer = (getattr(control_pb2, each.name) for each in (contract.input_type, contract.output_type))
        given = CREDENTIALS
        options = (*OPTIONS, *([("grpc.ssl_target_name_override", given.name)] if given.name else []))
        tls = grpc.ssl_channel_credentials(given.ca)
        self._channel = grpc.secure_channel(path, tls, options=options)
        make = self._channel.unary_stream if contract.server_streaming else self._channel.unary_unary
        called: Any = make(f"/{SERVICE}/{method}", request.SerializeToString, answer.FromString)
        metadata = (("authorization", f"Bearer {given.token}"),) if given.token else ()
        endless = contract.server_streaming and bool((fields or {}).get("follow"))
        limit_s = None if endless else self.limit_s
        if contract.server_streaming:
            self._call = called(request(**(fields or {})), timeout=limit_s, metadata=metadata)
        else:
            self._call = called.future(request(**(fields or {})), timeout=limit_s, metadata=metadata)
        self._streams = contract.server_streaming
        threading.Thread(target=self._take, name="elasticctl-call", daemon=True).start()

    def fileno(self) -> int:
        return self._event

    def _take(self) -> None:
        try:
            for each in self._call if self._streams else iter([self._call.result()]):
                self._put(as_fields(each))
            self._put(None)
        except grpc.RpcError as error:
            self._put(error)
        except grpc.FutureCancelledError:
            self._put(None)

    def _put(self, found: Message | Exception | None) -> None:
        with self._lock:
            # One who reads slowly holds up the agent, which leaves out what it cannot keep, and counts it.
            self._lock.wait_for(lambda: self._closed or len(self._arrived) < ARRIVED_MAX)
            if not self._closed:
                self._arrived.append(found)
                os.eventfd_write(self._event, 1)

    def arrived(self) -> list[Message]:
        """As `Call.arrived`."""
        if select.select([self._event], [], [], 0)[0]:
            os.eventfd_read(self._event)
        found: list[Message] = []
        with self._lock:
            arrived = list(self._arrived)
            self._arrived.clear()
            self._lock.notify()
        for each in arrived:
            if isinstance(each, dict):
                found.append(each)
                continue
            self.ended = True
            if isinstance(each, grpc.RpcError):
                self._failed(each)
        return found

    def _failed(self, error: Any) -> None:  # noqa: ANN401 - gRPC's error is a call, too
        told = error.details() or error.code().name
        if error.code() in FAILED:
            raise AgentUnreachable(f"{self.path}: {in_words(told)}")
        raise CallRefused(f"{self.path}: {told}")

    def messages(self, limit_s: float | None = None) -> Iterator[Message]:
        """As `Call.messages`; gRPC keeps the limit."""
        while not self.ended:
            select.select([self._event], [], [])
            yield from self.arrived()

    def close(self) -> None:
        """End the call."""
        with self._lock:
            if self._closed:
                return
            self.ended = self._closed = True
            self._lock.notify()
            os.close(self._event)
        self._call.cancel()
        self._channel.close()


def as_fields(message: Any, *, sparse: bool = False) -> Message:  # noqa: ANN401 - any message of the contract
    """A message with the names and the fields that the agent's own JSON has."""
    made: Message = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        single = not _repeated(field)
        if single and field.has_presence and not message.HasField(field.name):
            continue
        if sparse and not field.has_presence and not value and field.name not in SHOWN:
            continue
        made[field.json_name] = _plain(field, value, single=single)
    return made


def _repeated(field: Any) -> bool:  # noqa: ANN401 - as above
    """`label` is deprecated in newer versions of protobuf, and `is_repeated` is missing in older ones."""
    found = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if found is None else found)


def _plain(field: Any, value: Any, *, single: bool) -> Any:  # noqa: ANN401 - as above
    if field.message_type is None:
        return value if single else list(value)
    if single:
        return as_fields(value, sparse=True)
    if field.message_type.GetOptions().map_entry:
        return {str(key): each for key, each in value.items()}
    return [as_fields(each, sparse=True) for each in value]
