"""Why an endpoint of etcd cannot be reached, found out with a connection of our own.

gRPC's texts change between its versions and say little of certificates. This looks again, as a plain TLS client, when
nothing else is left to do, so nobody pays for `ssl` but who needs it.
"""

from __future__ import annotations

import socket
import ssl

from ..endpoint import Endpoint, resolve
from ..store import StoreUnreachable
from .cluster import Tls
from .errors import EtcdTlsRefused

PROBE_S = 1.0
"""How long one step of looking may take."""

_SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""How a client opens HTTP/2 (RFC 9113, 3.4); a server answers with a frame of SETTINGS, whose fourth byte is 4."""


def explain(endpoint: Endpoint, tls: Tls | None, asked: str) -> str:
    """The reason, for people, naming the endpoint; empty: it can be reached. Raises EtcdTlsRefused if it is a
    certificate, or TLS itself. `asked`: what could not be asked."""
    try:
        with _connected(endpoint) as connection:
            if tls is None:
                return _explain_plain(connection, endpoint, asked)
            return _explain_tls(connection, endpoint, tls, asked)
    except StoreUnreachable as why:
        return str(why)
    except TimeoutError:
        return f"{endpoint} does not answer (its node is down, the address is wrong, or a firewall drops packets)"
    except OSError as why:
        return f"{endpoint}: {(why.strerror or str(why)).lower()}"


def _explain_plain(connection: socket.socket, endpoint: Endpoint, asked: str) -> str:
    said = _greet(connection)
    if _is_http2(said):
        return ""
    if _speaks_tls(endpoint):
        raise EtcdTlsRefused(
            f"etcd at {endpoint}, {asked}: it speaks TLS, and TLS was not asked for; "
            "name the CA of its certificate, or correct the endpoint"
        )
    return _no_etcd(endpoint, said)


def _explain_tls(connection: socket.socket, endpoint: Endpoint, tls: Tls, asked: str) -> str:
    begin = f"etcd at {endpoint}, {asked}:"
    context = _context(tls, begin)
    try:
        with context.wrap_socket(connection, server_hostname=endpoint.host) as secure:
            said = _greet(secure)  # with TLS 1.3, what the server thinks of our certificate comes only now
    except ssl.SSLCertVerificationError as why:
        raise EtcdTlsRefused(f"{begin} {_of_theirs(why, endpoint, tls)}") from why
    except (ssl.SSLError, ConnectionError) as why:
        if _speaks_plain(endpoint):
            raise EtcdTlsRefused(
                f"{begin} it does not speak TLS, which was asked for; switch TLS on there, or leave it out here"
            ) from why
        raise EtcdTlsRefused(f"{begin} {_of_ours(why, tls)}") from why
    return "" if _is_http2(said) else _no_etcd(endpoint, said)


def _no_etcd(endpoint: Endpoint, said: bytes) -> str:
    return f"{endpoint} is no etcd: it answered {said!r}" if said else f"{endpoint} hangs up at once"


def _greet(connection: socket.socket) -> bytes:
    connection.sendall(_SETTINGS)
    return connection.recv(16)


def _is_http2(said: bytes) -> bool:
    return said[3:4] == b"\x04"


def _speaks_plain(endpoint: Endpoint) -> bool:
    try:
        with _connected(endpoint) as connection:
            return _is_http2(_greet(connection))
    except OSError:
        return False


def _speaks_tls(endpoint: Endpoint) -> bool:
    """Whether the beginning of a TLS handshake gets an answer in TLS, also one that refuses it."""
    out = ssl.MemoryBIO()
    try:
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname=endpoint.host).do_handshake()
    except ssl.SSLWantReadError:
        pass  # as must be: what it would say is in `out`
    try:
        with _connected(endpoint) as connection:
            connection.sendall(out.read())
            return connection.recv(1) in (b"\x15", b"\x16")  # an alert, or a handshake (RFC 8446, 5.1)
    except OSError:
        return False


def _connected(endpoint: Endpoint) -> socket.socket:
    family, address = resolve(endpoint)[0]
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(PROBE_S)
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


_SIGN = "have it signed by the CA that the servers trust, for use as a client, and renew it before it expires"


def _context(tls: Tls, begin: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca_file or None)
    except OSError as why:  # an SSLError is one too
        raise EtcdTlsRefused(
            f"{begin} the CA file {tls.ca_file} holds no certificate in PEM ({why}); correct it"
        ) from why
    context.set_alpn_protocols(["h2"])
    if tls.cert_file:
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file)
        except OSError as why:
            raise EtcdTlsRefused(
                f"{begin} our certificate {tls.cert_file} and key {tls.key_file} are no pair in PEM ({why}); "
                "correct the paths"
            ) from why
        _check_own(tls, begin)
    return context


def _check_own(tls: Tls, begin: str) -> None:
    """Raise EtcdTlsRefused if our own certificate has expired, is not valid yet, or is not for clients.

    Servers only hang up on such a one. So it is shown, in memory, to a server of ours that trusts it and nothing else.
    """
    judge = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    judge.load_cert_chain(tls.cert_file, tls.key_file)
    judge.verify_mode = ssl.CERT_REQUIRED
    judge.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    judge.load_verify_locations(tls.cert_file)
    shower = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    shower.check_hostname = False
    shower.verify_mode = ssl.CERT_NONE
    shower.load_cert_chain(tls.cert_file, tls.key_file)
    to_judge, to_shower = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [shower.wrap_bio(to_shower, to_judge), judge.wrap_bio(to_judge, to_shower, server_side=True)]
    for _ in range(4):  # flights of a handshake
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass  # the other side is to speak
            except ssl.SSLCertVerificationError as why:
                raise EtcdTlsRefused(
                    f"{begin} our certificate {tls.cert_file} is not good: {why.verify_message}; {_SIGN}"
                ) from why


def _of_theirs(why: ssl.SSLCertVerificationError, endpoint: Endpoint, tls: Tls) -> str:
    said = why.verify_message or "not verified"
    if "expired" in said or "not yet valid" in said:
        return f"the server's certificate is not good: {said}; renew it, and see whether this node's clock is right"
    if "match" in said:
        return f"the server's certificate is for another host: {said.rstrip('.')}; use the name that it has"
    trusted = f"the CA in {tls.ca_file}" if tls.ca_file else "the CAs that this system trusts"
    return f"the server's certificate is not signed by {trusted}: {said}; give the CA that signed it"


def _of_ours(why: OSError, tls: Tls) -> str:
    reason = (getattr(why, "reason", None) or why.strerror or str(why)).lower().replace("_", " ")
    if not tls.cert_file:
        return f"it asks for a certificate of ours ({reason}); give a certificate and its key"
    return f"it refuses our certificate {tls.cert_file} ({reason}); {_SIGN}"
