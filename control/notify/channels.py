"""Where messages go: mail, webhooks, Slack, a command. Each sends one message, or says why it could not."""

from __future__ import annotations

import json
import shlex
import socket
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from ...agent.errors import UsageError
from ...proto.frozen import dataclass
from ..commands import Asker, NoReading
from .secrets import HIDDEN, fill, hide, shown

if TYPE_CHECKING:
    import smtplib
    from urllib.request import OpenerDirector

    from .within import Within

SEND_S = 15.0
"""How long a server may take for each step of a delivery, and a command for all of it."""
WHOLE_S = 45.0
"""How long a webhook may take for all of a delivery, however little of its answer comes at a time."""
FORMS = "smtp://HOST/?to=ADDRESS, smtps://..., https://HOST/PATH, slack://hooks.slack.com/..., exec:COMMAND"


class NotDelivered(Exception):
    """A message did not arrive; the text holds no secret. `retry_after_s` is the pause that the server asked for."""

    def __init__(self, why: str, retry_after_s: float | None = None) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Message:
    """What is sent."""

    title: str
    text: str
    job: str
    node: str
    events: tuple[tuple[str, int], ...]
    """Each event and how often it came: (text, count)."""
    total: int

    def to_json(self) -> str:
        """For webhooks and commands."""
        events = [{"text": text, "count": count} for text, count in self.events]
        told = {"title": self.title, "text": self.text, "job": self.job, "node": self.node}
        return json.dumps({**told, "events": events, "total": self.total})


class Channel(Protocol):
    """One way to people."""

    name: str
    """What logs call it; without secrets."""

    def check(self) -> None:
        """Raises UsageError if its secrets are not there."""
        ...

    def send(self, message: Message) -> None:
        """Deliver it within a few times SEND_S. Raises NotDelivered."""
        ...

    def close(self) -> None:
        """Leave nothing running of what a delivery has started, which nobody waits for any more."""
        ...


def channel(url: str) -> Channel:
    """The channel of a URL. Raises UsageError, whose text does not hold the URL: it may be secret."""
    scheme, colon, rest = url.partition(":")
    if scheme == "exec" and colon:
        try:
            if shlex.split(rest):
                return _Command(rest)
        except ValueError:
            pass  # a quote is not closed; as if there were no command
        raise UsageError("notify: exec: has no command that can be split; give exec:COMMAND")
    try:
        where = urlsplit(shown(url))
        usable = bool(where.hostname) and where.port != 0
    except ValueError:
        where, usable = urlsplit(""), False  # a port that is no number, a bracket that is not closed
    if scheme not in ("smtp", "smtps", "http", "https", "slack"):
        raise UsageError(f"notify: a URL that begins {scheme[:8]!r} is not supported; give one of {FORMS}")
    if not usable:
        raise UsageError(f"notify: a URL that begins {scheme!r} has no host, or no usable port; give one of {FORMS}")
    if scheme.startswith("smtp"):
        return _Mail(url)
    if where.username is not None:
        raise UsageError(
            f"notify: {scheme}://...@{where.hostname} has a login, which only mail can have; give a URL without"
        )
    return _Post(url)


class _Filled:
    """A URL whose secrets are read when it is used."""

    _safe = ""
    """Characters of a secret that are part of the URL's own form."""

    def __init__(self, url: str) -> None:
        self._url = url
        where = urlsplit(shown(url))
        host = where.netloc.rpartition("@")[2]
        self.name = f"{where.scheme}://{host}"  # a webhook's path is its secret

    def check(self) -> None:
        fill(self._url, self._safe)

    def close(self) -> None:
        """A connection ends with this process."""

    def _filled(self) -> tuple[str, tuple[str, ...]]:
        try:
            return fill(self._url, self._safe)
        except UsageError as error:
            raise NotDelivered(str(error)) from None


class _Mail(_Filled):
    """Mail by SMTP. A login needs TLS, because it would be sent in clear otherwise."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        where = urlsplit(shown(url))
        if where.password is not None and HIDDEN not in where.password:
            raise UsageError(f"notify: {self.name} has a password in it; write {{env:NAME}} or {{file:PATH}} there")
        options = _options(where.query)
        self._tls = bool(where.username) or "tls" in options
        if not options.get("to") or set(options) - {"to", "from", "tls"} or options.get("tls", "yes") != "yes":
            raise UsageError(f"notify: {self.name} needs ?to=ADDRESS[,ADDRESS], and takes &from=ADDRESS and &tls=yes")
        if not all(map(str.isprintable, options.values())):
            raise UsageError(f"notify: {self.name} has a line break or the like in an address; write it without")

    def send(self, message: Message) -> None:
        import smtplib
        from email.message import EmailMessage

        url, secrets = self._filled()
        where = urlsplit(url)
        options = _options(where.query)
        mail = EmailMessage()
        mail["Subject"], mail["To"] = message.title, ", ".join(options["to"].split(","))
        mail["From"] = options.get("from", f"elastic-agent@{socket.gethostname()}")
        mail.set_content(message.text)
        secrets += tuple(unquote(part) for part in (where.password,) if part)
        try:
            with self._connect(where.scheme, where.hostname or "", where.port) as server:
                if where.username:
                    server.login(unquote(where.username), unquote(where.password or ""))
                refused = server.send_message(mail)
        except (OSError, smtplib.SMTPException, UnicodeError) as error:
            raise NotDelivered(hide(_one_line(error), secrets)) from None
        if refused:
            raise NotDelivered(hide(f"refused for {', '.join(refused)}", secrets))

    def _connect(self, scheme: str, host: str, port: int | None) -> smtplib.SMTP:
        import smtplib
        import ssl

        if scheme == "smtps":
            return smtplib.SMTP_SSL(host, port or 465, timeout=SEND_S, context=ssl.create_default_context())
        server = smtplib.SMTP(host, port or 25, timeout=SEND_S)
        if self._tls:
            try:
                server.starttls(context=ssl.create_default_context())
            except BaseException:
                server.close()
                raise
        return server


class _Post(_Filled):
    """A webhook: JSON by POST. Slack takes one key, `text`."""

    _safe = "/"

    def send(self, message: Message) -> None:
        import urllib.error
        import urllib.request
        from http.client import HTTPException

        from .within import Within

        url, secrets = self._filled()
        scheme, _, rest = url.partition("://")
        where = urlsplit(url)
        secrets += (*where.path.split("/"), *(value for values in parse_qs(where.query).values() for value in values))
        body = message.to_json()
        if scheme == "slack":
            scheme, body = "https", json.dumps({"text": f"*{message.title}*\n{message.text}"})
        headers = {"Content-Type": "application/json", "User-Agent": "elastic-agent-watch"}
        request = urllib.request.Request(f"{scheme}://{rest}", body.encode(), headers, method="POST")  # noqa: S310 - HTTP
        within = Within(WHOLE_S)
        try:
            with within, _opener(within).open(request, timeout=SEND_S):
                pass  # a status of 2xx has come: it is delivered, and the rest of the answer is of no use
        except urllib.error.HTTPError as error:
            error.close()
            asked = error.headers.get("Retry-After", "")
            why = hide(f"the server answered {error.code} {error.reason}", secrets)
            raise NotDelivered(why, float(asked) if asked.isdecimal() and asked.isascii() else None) from None
        except (OSError, HTTPException, ValueError) as error:
            if not within.over:
                raise NotDelivered(hide(_one_line(error), secrets)) from None
        if within.over:  # what had come until the connection was cut off may look like an answer
            raise NotDelivered(f"the server has not answered within {WHOLE_S:g} s")


class _Command:
    """A command of the user's, with the message as JSON on its stdin."""

    def __init__(self, line: str) -> None:
        self._line = line
        self.name = f"exec:{shlex.split(line)[0]}"
        self._asker = Asker()

    def check(self) -> None:
        for part in shlex.split(self._line):
            fill(part)

    def send(self, message: Message) -> None:
        secrets: tuple[str, ...] = ()
        argv = []
        try:
            for part in shlex.split(self._line):
                text, found = fill(part)
                argv.append(text)
                secrets += found
            self._asker.run(argv, SEND_S, message.to_json())
        except (NoReading, UsageError) as error:
            raise NotDelivered(hide(str(error), secrets)) from None

    def close(self) -> None:
        self._asker.end()


def _options(query: str) -> dict[str, str]:
    """The options of a mail's URL. A plus sign is part of an address, not a space."""
    return {name: values[0] for name, values in parse_qs(query.replace("+", "%2B")).items()}


def _opener(within: Within) -> OpenerDirector:
    """Follows no redirect: a POST would become a GET, and its answer look like a delivery."""
    from urllib.request import HTTPRedirectHandler, build_opener

    class Refuse(HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    return build_opener(Refuse, *within.handlers())


def _one_line(error: Exception) -> str:
    """An error of smtplib, urllib or the socket, on one line."""
    said = getattr(error, "reason", None) or getattr(error, "smtp_error", None) or error
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    return " ".join(text.split()) or type(error).__name__
