"""How an agent identifies itself to etcd servers: certificates, a password, and the token that a login returns.

All three are replaced while a long job runs. So files are read again where they are used: the password's at each login,
the certificates' after a failed attempt, for the connection that follows.
"""

from __future__ import annotations

import random
import threading
import time
from functools import cache

from ...proto.frozen import dataclass, field
from .errors import EtcdLoginRefused, EtcdTlsRefused

SPREAD_S = 1.0
"""After servers refused a token, an agent waits for a random part of this time before it logs in: they refuse those of
all agents at once (a restart, a change of users), and hashing a password takes them up to a tenth of a second."""
RENEW_AFTER, RENEW_BEFORE = 0.5, 0.9
"""A token that shows its expiry is replaced at a random point between these fractions of its life."""
SHORTEST_LIFE_S = 10.0
"""A token with a shorter life is replaced when servers refuse it: it is one for tests, or the clocks differ."""

TlsFiles = tuple[bytes | None, bytes | None, bytes | None]
"""Contents of the files of the CA, the key and the certificate; None: there is no such file."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate files in PEM. A changed file takes effect at the next connection."""

    ca_file: str = ""
    """CA of the servers' certificates; empty: the CAs that this system trusts."""
    cert_file: str = ""
    """The client certificate, for a cluster that requires one; empty: none."""
    key_file: str = ""
    """Its private key."""

    def read(self) -> TlsFiles:
        """The files as they are now. Raises EtcdTlsRefused if one cannot be read."""
        if bool(self.cert_file) != bool(self.key_file):
            alone, missing = ("certificate", "key") if self.cert_file else ("key", "certificate")
            raise EtcdTlsRefused(f"a TLS {alone} for etcd is given without its {missing}; give both, or neither")
        return (
            _contents("CA certificate", self.ca_file or _system_ca_file()),
            _contents("key", self.key_file),
            _contents("certificate", self.cert_file),
        )


@dataclass(frozen=True, slots=True)
class Login:
    """A user of the cluster."""

    user: str
    password: str = field(default="", repr=False)
    password_file: str = ""
    """Holds the password instead, and is read at each login."""

    def current_password(self) -> str:
        """Raises EtcdLoginRefused if the file cannot be used."""
        if not self.password_file:
            return self.password
        try:
            return read_password(self.password_file)
        except ValueError as why:
            raise EtcdLoginRefused(f"the password file {self.password_file} of user {self.user!r} {why}") from why


def read_password(path: str) -> str:
    """The password in a file. Raises ValueError, in the words that follow the file's name in a message."""
    try:
        with open(path, encoding="utf-8") as file:
            password = file.read().rstrip("\r\n")
    except OSError as why:
        raise ValueError(f"cannot be read: {why.strerror}; correct the path, or let this user read it") from why
    except UnicodeDecodeError as why:
        place = f"byte {why.start} is {why.object[why.start]:#04x}"
        raise ValueError(f"is not UTF-8 text: {place}; write the password alone into it, as UTF-8 text") from None
    if not password or "\n" in password:
        raise ValueError(f"has {len(password.splitlines())} lines; write the password alone, in one line")
    return password


class Token:
    """The token of the last login, shared by all sessions of a process, of which one at a time logs in."""

    def __init__(self, login: Login | None) -> None:
        self.login = login
        self.turn = threading.Lock()
        """Held by the thread that logs in."""
        self.value: str | None = None
        """Sent with each request; empty: the cluster requires none; None: there is none that is known to be valid."""
        self._renew_at = float("inf")
        self._spread_s = 0.0

    def is_due(self) -> bool:
        """Whether somebody should log in."""
        return self.login is not None and (self.value is None or time.monotonic() >= self._renew_at)

    def take(self, token: str) -> None:
        """A server has returned this token."""
        life_s = _life_s(token)
        self._renew_at, self._spread_s = float("inf"), 0.0
        if life_s >= SHORTEST_LIFE_S:
            self._renew_at = time.monotonic() + life_s * random.uniform(RENEW_AFTER, RENEW_BEFORE)
        self.value = token

    def drop(self, token: str | None) -> None:
        """A server has refused this token; another thread may have replaced it already."""
        if self.value == token:
            self.value, self._spread_s = None, SPREAD_S

    def put_off(self) -> None:
        """The token was not replaced in time; it goes on being used until a server refuses it."""
        self._renew_at = float("inf")

    def pause_s(self) -> float:
        """How long to wait before logging in; random."""
        return random.uniform(0.0, self._spread_s)


def _life_s(token: str) -> float:
    """Seconds until this token expires; 0 if it does not show that. etcd's JSON web tokens have the claim `exp`
    (RFC 7519, 4.1.4); its simple tokens live for as long as they are used."""
    parts = token.split(".")
    if len(parts) != 3:
        return 0.0
    import binascii
    import json

    try:
        claims = json.loads(binascii.a2b_base64(parts[1].replace("-", "+").replace("_", "/") + "=="))
        return float(claims["exp"]) - time.time()
    except (ValueError, TypeError, KeyError):
        return 0.0


@cache
def _system_ca_file() -> str:
    import ssl

    return ssl.get_default_verify_paths().cafile or ""


def _contents(what: str, path: str) -> bytes | None:
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as why:
        raise EtcdTlsRefused(f"cannot read etcd's TLS {what} {path}: {why.strerror}; correct the path") from why
