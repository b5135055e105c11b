"""Why an etcd endpoint cannot be reached, found by connecting to it as a plain TCP or TLS client.

gRPC's texts change between versions and contain little about certificates. This module imports `ssl`, which costs
memory, so it is imported only where a call has failed or TLS is configured.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ..endpoint import Address, Endpoint, resolve
from ..store import StoreUnreachable
from .credentials import Tls
from .errors import EtcdTlsRefused

PROBE_S = 0.8
"""Bound on each connect and each read of a probe: with `retries.CALL_S` less than `connection.CALL_LIMIT_S`."""

_SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""A client's connection preface of HTTP/2 (RFC 9113, 3.4); a server answers with a SETTINGS frame, whose fourth byte
is 4."""


def explain_all(endpoints: Sequence[Endpoint], tls: Tls | None, what: str) -> list[str | EtcdTlsRefused]:
    """For each endpoint what `explain` returns, or raises. All are probed at once, as each may take its whole time."""

    def explained(endpoint: Endpoint) -> str | EtcdTlsRefused:
        try:
            return explain(endpoint, tls, what)
        except EtcdTlsRefused as error:
            return error

    with ThreadPoolExecutor(len(endpoints), "etcd probe") as pool:
        return list(pool.map(explained, endpoints))


def explain(endpoint: Endpoint, tls: Tls | None, what: str) -> str:
    """The reason why `endpoint` cannot be reached, for a message; empty: it can. Raises EtcdTlsRefused if the reason is
    a certificate, or TLS itself. `what`: the request, for the message."""
    try:
        with _connected(endpoint) as connection:
            if tls is None:
                return _explain_plain(connection, endpoint, what)
            return _explain_tls(connection, endpoint, tls, what)
    except StoreUnreachable as why:
        return str(why)
    except TimeoutError:
        return f"{endpoint} does not answer (its host is down, the address is wrong, or a firewall drops packets)"
    except OSError as why:
        return f"{endpoint}: {(why.strerror or str(why)).lower()}"


def _explain_plain(connection: socket.socket, endpoint: Endpoint, what: str) -> str:
    answer = _first_answer(connection)
    if _is_http2(answer):
        return ""
    if _answers_tls(endpoint):
        raise EtcdTlsRefused(
            f"etcd at {endpoint}, {what}: the server uses TLS, and this agent does not; "
            "name the CA of the server's certificate, or correct the endpoint"
        )
    return _not_etcd(endpoint, answer)


def _explain_tls(connection: socket.socket, endpoint: Endpoint, tls: Tls, what: str) -> str:
    begin = f"etcd at {endpoint}, {what}:"
    context = _context(tls, begin)
    try:
        with context.wrap_socket(connection, server_hostname=endpoint.host) as secure:
            answer = _first_answer(secure)  # with TLS 1.3, a server rejects a client certificate only now
    except ssl.SSLCertVerificationError as why:
        raise EtcdTlsRefused(f"{begin} {_server_certificate_error(why, endpoint, tls)}") from why
    except (ssl.SSLError, ConnectionError) as why:
        if _answers_plain(endpoint):
            raise EtcdTlsRefused(
                f"{begin} the server does not use TLS, and this agent does; enable TLS there, or leave it out here"
            ) from why
        raise EtcdTlsRefused(f"{begin} {_client_certificate_error(why, tls)}") from why
    return "" if _is_http2(answer) else _not_etcd(endpoint, answer)


def _not_etcd(endpoint: Endpoint, answer: bytes) -> str:
    return f"{endpoint} is not etcd: it answered {answer!r}" if answer else f"{endpoint} closes the connection at once"


def _first_answer(connection: socket.socket) -> bytes:
    connection.sendall(_SETTINGS)
    return connection.recv(16)


def _is_http2(answer: bytes) -> bool:
    return answer[3:4] == b"\x04"


def _answers_plain(endpoint: Endpoint) -> bool:
    try:
        with _connected(endpoint) as connection:
            return _is_http2(_first_answer(connection))
    except OSError:
        return False


def _answers_tls(endpoint: Endpoint) -> bool:
    """Whether the start of a TLS handshake is answered in TLS, be it with an alert."""
    out = ssl.MemoryBIO()
    try:
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname=endpoint.host).do_handshake()
    except ssl.SSLWantReadError:
        pass  # expected: the client hello is in `out`
    try:
        with _connected(endpoint) as connection:
            connection.sendall(out.read())
            return connection.recv(1) in (b"\x15", b"\x16")  # an alert, or a handshake (RFC 8446, 5.1)
    except OSError:
        return False


def _connected(endpoint: Endpoint) -> socket.socket:
    """To the first of its addresses that takes a connection, as gRPC has tried them all: `localhost` mostly has two,
    and a server listens on one. Raises OSError, of the last of them, and StoreUnreachable."""
    found = resolve(endpoint)
    for address in found[:-1]:
        try:
            return _connected_to(address, PROBE_S / len(found))
        except OSError:
            continue  # to the next
    return _connected_to(found[-1], PROBE_S / len(found))


def _connected_to(address: Address, timeout_s: float) -> socket.socket:
    family, where = address
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(where)
        connection.settimeout(PROBE_S)
    except OSError:
        connection.close()
        raise
    return connection


_SIGN_AND_RENEW = "have it signed by the CA that the servers trust, for client use, and renew it before it expires"


def _context(tls: Tls, begin: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca_file or None)
    except OSError as why:  # SSLError is a subclass
        raise EtcdTlsRefused(
            f"{begin} the CA file {tls.ca_file} contains no PEM certificate ({why}); correct it"
        ) from why
    context.set_alpn_protocols(["h2"])
    if tls.cert_file:
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file)
        except OSError as why:
            raise EtcdTlsRefused(
                f"{begin} the certificate {tls.cert_file} and the key {tls.key_file} are not a PEM pair ({why}); "
                "correct the paths"
            ) from why
        _check_client_certificate(tls, begin)
    return context


def _check_client_certificate(tls: Tls, begin: str) -> None:
    """Raise EtcdTlsRefused if the client certificate has expired, is not valid yet, or is not for client use.

    A server that gets such a certificate closes the connection without a reason. So a handshake in memory presents it
    to a TLS server that trusts only this certificate.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tls.cert_file, tls.key_file)
    server.verify_mode = ssl.CERT_REQUIRED
    server.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    server.load_verify_locations(tls.cert_file)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    client.load_cert_chain(tls.cert_file, tls.key_file)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    for _ in range(4):  # flights of a handshake
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass  # it waits for the other side
            except ssl.SSLCertVerificationError as why:
                raise EtcdTlsRefused(
                    f"{begin} the client certificate {tls.cert_file} is not valid: {why.verify_message}; "
                    f"{_SIGN_AND_RENEW}"
                ) from why


def _server_certificate_error(why: ssl.SSLCertVerificationError, endpoint: Endpoint, tls: Tls) -> str:
    reason = why.verify_message or "not verified"
    if "expired" in reason or "not yet valid" in reason:
        return f"the server's certificate is not valid: {reason}; renew it, and check that this host's clock is right"
    if "match" in reason:
        return f"the server's certificate is for another host: {reason.rstrip('.')}; use the name in the certificate"
    trusted = f"the CA in {tls.ca_file}" if tls.ca_file else "the CAs that this system trusts"
    return f"the server's certificate is not signed by {trusted}: {reason}; give the CA that signed it"


def _client_certificate_error(why: OSError, tls: Tls) -> str:
    reason = (getattr(why, "reason", None) or why.strerror or str(why)).lower().replace("_", " ")
    if not tls.cert_file:
        return f"the server requires a client certificate ({reason}); give a certificate and its key"
    return f"the server rejects the client certificate {tls.cert_file} ({reason}); {_SIGN_AND_RENEW}"
