"""The gRPC server of one agent: each method of the contract, and the standard health service.

gRPC's own threads carry it, and each call has one; the agent's loop only looks for readers that stand still.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from functools import partial
from typing import Any, NoReturn

import grpc

from ...agent.agent import Agent
from ...agent.errors import UsageError
from ...agent.lifecycle.state import Phase, Verdict
from ...agent.loop import Loop
from ...agent.report import AgentEvent
from ...proto import control_pb2, health_pb2
from ...rendezvous.driver.events import LoopAsked
from ...rendezvous.records import Round
from ...rendezvous.text import count
from ..control_socket import Service
from ..service.connection import TAKEN_S
from ..service.followers import EventFollower, Follower, followed
from ..service.http import BODY_MAX
from ..service.methods import METHODS, Method, NotNow
from .awaited import Awaited, NoMessage
from .conversion import Unreadable, fill, readable, reader, request_of
from .memory import give_back
from .streams import HEALTH_MAX, Streams, TooMany
from .tokens import Holder, Tokens

SERVICE, HEALTH, READY = "elastic.control.v1.Control", "grpc.health.v1.Health", "ready"
CALLS_MAX, CONNECTIONS_MAX = 128, 128
"""At a time; further ones are refused. More calls than may wait for a message and follow a stream, both with a token
and without."""
GIVEN_BACK_EVERY = 1000
"""Calls after which memory that they have left free is given back."""
CLOSE_S = 2.0
"""How long readers have, at the agent's end, to take what is left."""
OPTIONS = (
    ("grpc.so_reuseport", 0),  # two agents would share the port, and each get every other call
    ("grpc.max_allowed_incoming_connections", CONNECTIONS_MAX),
    ("grpc.max_concurrent_streams", CALLS_MAX),
    ("grpc.max_receive_message_length", BODY_MAX),
    ("grpc.max_metadata_size", 8192),
    ("grpc.server_handshake_timeout_ms", 5000),
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)
Serving = health_pb2.HealthCheckResponse
HealthRequest = health_pb2.HealthCheckRequest | Unreadable
Tell = Callable[[str, bool], None]


class Threads(futures.Executor):
    """A thread for each call, of which gRPC allows `CALLS_MAX`; the agent's end waits for none of them."""

    def __init__(self) -> None:
        self._calls = itertools.count(1)

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> futures.Future[Any]:  # noqa: ANN401
        """As `Executor.submit`."""
        made: futures.Future[Any] = futures.Future()

        def run() -> None:
            try:
                made.set_result(call(*args, **options))
            except BaseException as error:  # noqa: BLE001 - the future hands it on
                made.set_exception(error)
            if next(self._calls) % GIVEN_BACK_EVERY == 0:
                give_back()

        try:
            threading.Thread(target=run, name="elastic-agent-call", daemon=True).start()
        except RuntimeError:
            # This host refuses a thread. The call stays without an answer until its deadline, or until whoever follows
            # gives up; an error from here would end the thread on which gRPC takes all calls.
            made.cancel()
        return made


class Remote:
    """Serves one agent while it runs. Beside `Service`, which hands it what happens."""

    def __init__(self, service: Service, address: str, tls: tuple[bytes, bytes], tokens: Tokens, tell: Tell) -> None:
        """Takes the port at once. `address`: HOST:PORT; `tls`: the certificates and the key, in PEM. Where the address
        is taken the job runs without, and one line says so."""
        self._service, self._tokens, self._tell = service, tokens, tell
        self._streams, self._health_streams = Streams(), Streams(HEALTH_MAX)
        self._awaited, self._health_awaited = Awaited(), Awaited()
        self._planned = False
        self._loop: Loop | None = None
        threads: Any = Threads()  # an Executor is enough, whatever the stubs say
        self._server = grpc.server(threads, maximum_concurrent_rpcs=CALLS_MAX, options=OPTIONS)
        self._server.add_generic_rpc_handlers((self._handlers(), self._health_handlers()))
        certificates, key = tls
        host, _, _ = address.rpartition(":")
        self.port = 0
        try:
            credentials = grpc.ssl_server_credentials([(key, certificates)])
            self.port = self._server.add_secure_port(address, credentials)
        except (RuntimeError, ValueError) as error:
            self._trouble = f"{type(error).__name__}"
        self.address = f"{host}:{self.port}" if self.port else ""
        """Where it is reached."""
        if not self.port:
            tell(
                f"cannot serve on TCP: {address} is taken or no address of this host, or the certificate does not fit "
                "the key; the job runs on; give another --control-address",
                False,
            )

    def begin(self, agent: Agent, loop: Loop) -> None:
        """Serve from now on."""
        if self.port:
            self._loop = loop
            self._server.start()
            self._tell(f"the control service is on {self.address}, by gRPC with TLS", True)

    def happened(self, what: AgentEvent | Round | Verdict) -> None:
        """Does nothing: the service sends to streams itself."""

    def close(self) -> None:
        """Serve no more; who follows gets what is left. Idempotent."""
        if self._loop is not None:
            self._loop = None
            for listener in self._service.on_change:
                listener()
        try:
            self._server.stop(CLOSE_S).wait(2 * CLOSE_S)
        except RuntimeError:
            pass  # this host refuses the thread that would wait for readers: they go with the process

    # -- the contract -------------------------------------------------------------------------------------------------

    def _handlers(self) -> grpc.GenericRpcHandler:
        made = {}
        for name, method in METHODS.items():
            contract = control_pb2.DESCRIPTOR.services_by_name["Control"].methods_by_name[name]
            request, answer = (getattr(control_pb2, each.name) for each in (contract.input_type, contract.output_type))
            serve = self._stream if method.streams else self._answer
            # A handler of streamed requests is called before the message has come, so the token is looked at first.
            handler = grpc.stream_stream_rpc_method_handler if method.streams else grpc.stream_unary_rpc_method_handler
            made[name] = handler(
                partial(serve, name, method, answer), reader(request), answer.SerializeToString
            )  # fmt: skip
        return grpc.method_handlers_generic_handler(SERVICE, made)

    def _answer(self, name: str, method: Method, answer: Any, requests: Any, context: Any) -> Any:  # noqa: ANN401
        who = self._who(name, method, context)
        request = self._message(self._awaited, requests, context)
        return fill(answer(), self._called(method, request, who, context))

    def _stream(self, name: str, method: Method, answer: Any, requests: Any, context: Any) -> Iterator[Any]:  # noqa: ANN401
        who = self._who(name, method, context)
        request = self._message(self._awaited, requests, context)

        def make() -> Follower:
            found: Any = self._called(method, request, who, context)
            return found  # type: ignore[no-any-return]

        yield from (fill(answer(), message) for message in self._guarded(self._streams, context, make))

    def _message(self, awaited: Awaited, requests: Any, context: Any) -> Any:  # noqa: ANN401
        """What the call asks; ends one that holds it back."""
        try:
            return awaited.message(context, requests, time.monotonic, self._watch)
        except NoMessage as error:
            self._refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))

    def _guarded(self, streams: Streams, context: Any, make: Callable[[], Follower]) -> Iterator[Any]:  # noqa: ANN401
        """What a follower that is made sends, until its reader is gone."""
        messages = followed(self._service, make, lambda: not context.is_active(), context.add_callback)
        try:
            yield from streams.guarded(context, messages, time.monotonic, self._watch)
        except TooMany as error:
            self._refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))

    def _who(self, name: str, method: Method, context: Any) -> str:  # noqa: ANN401
        """Who asks, for people; ends the call of one who may not."""
        holder: Holder | None = self._tokens.holder(context.invocation_metadata())
        if holder is None:
            self._refuse(context, grpc.StatusCode.UNAUTHENTICATED, "the token is missing or not in --control-tokens")
        if not method.reads and not holder.writes:
            self._refuse(
                context,
                grpc.StatusCode.PERMISSION_DENIED,
                f"the token {holder.name} is for reading; {name} needs one for `write`",
            )
        return f"token {holder.name} ({context.peer()})"

    def _called(self, method: Method, request: Any, who: str, context: Any) -> object:  # noqa: ANN401
        try:
            return method.call(self._service, request_of(method.request, request), who)
        except NotNow as error:
            self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except UsageError as error:
            self._refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Exception as error:  # noqa: BLE001 - a mistake here must not end the job
            self._tell(f"the control service failed: {type(error).__name__}: {error}; please report it", False)
            self._refuse(context, grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")

    def _refuse(self, context: Any, code: grpc.StatusCode, text: str) -> NoReturn:  # noqa: ANN401
        context.abort(code, text)
        raise RuntimeError(text)  # abort has raised

    # -- callers that stand still -------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Look at streams, and at calls without a message, now and then as long as there are any."""
        if self._loop is not None:
            self._loop.post(LoopAsked(self._begin_watch))

    def _begin_watch(self) -> None:
        if not self._planned:
            self._planned = True
            self._look()

    def _look(self) -> None:
        loop = self._loop
        if loop is None:
            return
        found = [streams.drop_stuck(loop.now()) for streams in (self._streams, self._health_streams)]
        late = [awaited.drop_late(loop.now()) for awaited in (self._awaited, self._health_awaited)]
        dropped = sum(many for many, _ in found)
        due_s = min((at_s for _, at_s in (*found, *late) if at_s), default=None)
        if dropped:
            self._tell(f"{count(dropped, 'reader')} over TCP took nothing for {TAKEN_S:g} s; the stream is ended", True)
        self._planned = due_s is not None
        if due_s is not None:
            loop.wake_at(due_s, LoopAsked(self._look))

    # -- health -------------------------------------------------------------------------------------------------------

    def _health_handlers(self) -> grpc.GenericRpcHandler:
        request, answer = reader(health_pb2.HealthCheckRequest), Serving.SerializeToString
        return grpc.method_handlers_generic_handler(
            HEALTH,
            {
                "Check": grpc.stream_unary_rpc_method_handler(self._check, request, answer),
                "Watch": grpc.stream_stream_rpc_method_handler(self._health, request, answer),
            },
        )

    def _check(self, requests: Iterator[HealthRequest], context: Any) -> Serving:  # noqa: ANN401
        found = self._serving(self._asked_health(requests, context))
        if found.status == Serving.SERVICE_UNKNOWN:
            self._refuse(context, grpc.StatusCode.NOT_FOUND, f"there are {SERVICE} and {READY}")
        return found

    def _health(self, requests: Iterator[HealthRequest], context: Any) -> Iterator[Serving]:  # noqa: ANN401
        """The status at once, and whenever it has changed."""
        asked = self._asked_health(requests, context)

        def make() -> Follower:
            return _Changes(self._service, partial(self._serving, asked))

        yield from self._guarded(self._health_streams, context, make)

    def _asked_health(self, requests: Iterator[HealthRequest], context: Any) -> str:  # noqa: ANN401
        """Of which service; ends the call where that cannot be read."""
        try:
            return str(readable(self._message(self._health_awaited, requests, context)).service)
        except UsageError as error:
            self._refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))

    def _serving(self, service: str) -> Serving:
        agent = self._service.agent
        runs = agent is not None and not self._service.closed
        if service not in ("", SERVICE, READY):
            return Serving(status=Serving.SERVICE_UNKNOWN)
        if service == READY:
            runs = runs and agent is not None and agent.status().phase is Phase.WORKING
        return Serving(status=Serving.SERVING if runs else Serving.NOT_SERVING)


class _Changes(EventFollower):
    """The status of a service, and each change of it."""

    def __init__(self, service: Service, look: Callable[[], Serving]) -> None:
        self.endless = True
        self._look, self._last = look, Serving(status=Serving.UNKNOWN)

    def pump(self, send: Callable[[object], bool]) -> bool:
        """As `Follower.pump`."""
        found = self._look()
        if found != self._last:
            self._last = found
            send(found)
        return True
