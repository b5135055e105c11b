"""Messages to people, over a real mail server and a real web server, which refuse, hang and recover."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
import trustme

from elastic_agent.agent.errors import UsageError
from elastic_agent.control.decisions.outbox import Outbox, SendPace
from elastic_agent.control.notify import channels
from elastic_agent.control.notify.channels import Message, NotDelivered, channel
from elastic_agent.control.notify.notifier import Notifier, message_of
from support.network import free_port
from support.outside.web_server import WebServer, web_server
from support.procfs import slowed

MESSAGE = Message(
    "[job1] disk full", "disk: 95 % used\n\njob job1, node n1", "job1", "n1", (("disk: 95 % used", 1),), 1
)
WHOLE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n"
SECRET = "hunter2-secret"


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        yield server


@pytest.fixture
def certificates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ssl.SSLContext:
    """A server's certificate for localhost, whose authority this process trusts."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context


class Sink:
    """A real SMTP server of another's, and what it received."""

    def __init__(self, **options: Any) -> None:
        controller = pytest.importorskip("aiosmtpd.controller", reason="aiosmtpd is not installed: make setup")
        smtp = pytest.importorskip("aiosmtpd.smtp")
        self.mails: list[EmailMessage] = []
        self.logins: list[bytes] = []
        self.refusing, self.answering, self.asked = threading.Event(), threading.Event(), threading.Semaphore(0)
        self.answering.set()

        def authenticator(server: object, session: object, envelope: object, mechanism: str, data: Any) -> Any:
            self.logins.append(data.password)
            return smtp.AuthResult(success=data.password == SECRET.encode(), handled=False)

        if options.pop("login", False):
            options |= {"authenticator": authenticator, "auth_required": True}
        self._controller = controller.Controller(
            self, hostname="localhost", port=free_port(), ready_timeout=60.0, **options
        )

    async def handle_DATA(self, server: object, session: object, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        self.asked.release()
        await asyncio.to_thread(self.answering.wait)
        if self.refusing.is_set():
            return "451 try later"
        parsed = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(parsed, EmailMessage)
        self.mails.append(parsed)
        return "250 kept"

    def __enter__(self) -> Sink:  # noqa: PYI034 - Self is not in Python 3.10
        self.port = self._controller.port  # it connects there to see whether it is up, so it cannot be 0
        self._controller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.answering.set()
        self._controller.stop()


def quiet(line: str) -> None:
    """A log that nobody reads."""


def notifier(url: str, pace: SendPace, log: Callable[[str], None] = quiet) -> Notifier:
    return Notifier([channel(url)], pace, "job1", "n1", log)


def test_a_mail_arrives_with_job_node_and_cause() -> None:
    """Over plain SMTP, without a login."""
    with Sink() as sink:
        channel(f"smtp://localhost:{sink.port}/?to=a@example.org,b@example.org&from=watch@example.org").send(MESSAGE)
        [mail] = sink.mails
    assert (mail["Subject"], mail["From"]) == ("[job1] disk full", "watch@example.org")
    assert mail["To"] == "a@example.org, b@example.org"
    assert "disk: 95 % used" in mail.get_content()
    assert "node n1" in mail.get_content()


def test_the_bytes_of_a_name_that_is_no_text_and_its_line_breaks_are_replaced() -> None:
    """A directory may be called anything, and a mail that no server takes would be tried for ever."""
    outbox = Outbox(SendPace(0, 0))
    outbox.add("a", "disk a\udcff\rb: full\nnext: look", 0.0)
    digest = outbox.take(0.0)
    assert digest is not None
    message = message_of(digest, "job\n1", "n1")
    assert message.title == "[job 1] disk a? b: full"
    with Sink() as sink:
        channel(f"smtp://localhost:{sink.port}/?to=a+b@example.org").send(message)
    assert sink.mails[0]["Subject"] == message.title
    assert sink.mails[0]["To"] == "a+b@example.org"


@pytest.mark.filterwarnings("ignore:Requiring AUTH")  # by TLS from the first byte, of which the server does not know
@pytest.mark.parametrize("scheme", ["smtps", "smtp"])
def test_a_login_goes_over_tls(scheme: str, certificates: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """By TLS from the first byte, and by STARTTLS; the password comes from a variable."""
    monkeypatch.setenv("MAIL_PASSWORD", SECRET)
    tls = {"ssl_context": certificates} if scheme == "smtps" else {"tls_context": certificates}
    options = {"auth_require_tls": False} if scheme == "smtps" else {}
    with Sink(login=True, **tls, **options) as sink:
        channel(f"{scheme}://ops:{{env:MAIL_PASSWORD}}@localhost:{sink.port}/?to=a@example.org").send(MESSAGE)
        assert len(sink.mails) == 1
        assert sink.logins == [SECRET.encode()]


@pytest.mark.filterwarnings("ignore:Requiring AUTH")
def test_a_password_is_not_sent_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that offers none does not see it."""
    monkeypatch.setenv("MAIL_PASSWORD", SECRET)
    with Sink(login=True, auth_require_tls=False) as sink:
        with pytest.raises(NotDelivered, match="STARTTLS"):
            channel(f"smtp://ops:{{env:MAIL_PASSWORD}}@localhost:{sink.port}/?to=a@example.org").send(MESSAGE)
        assert (sink.logins, sink.mails) == ([], [])


def test_a_wrong_password_is_an_error_without_the_password(certificates: ssl.SSLContext, tmp_path: Path) -> None:
    """The server's words are kept, the secret is not."""
    (tmp_path / "password").write_text("wrong-" + SECRET)
    with Sink(login=True, tls_context=certificates) as sink, pytest.raises(NotDelivered) as raised:
        channel(f"smtp://ops:{{file:{tmp_path}/password}}@localhost:{sink.port}/?to=a@e.org").send(MESSAGE)
    assert "uthentication" in str(raised.value)
    assert SECRET not in str(raised.value)


def test_a_webhook_gets_json(web: WebServer) -> None:
    """With what happened, where and how often."""
    channel(f"http://127.0.0.1:{web.port}/hook").send(MESSAGE)
    [body] = web.bodies
    assert (body["title"], body["job"], body["node"], body["total"]) == (MESSAGE.title, "job1", "n1", 1)
    assert body["events"] == [{"text": "disk: 95 % used", "count": 1}]


def test_slack_gets_its_text_over_tls_by_a_secret_path(certificates: ssl.SSLContext, tmp_path: Path) -> None:
    """The path of the address comes from a file."""
    (tmp_path / "hook").write_text("T00/B00/hunter2\n")
    with web_server(certificates) as server:
        slack = channel(f"slack://localhost:{server.port}/services/{{file:{tmp_path}/hook}}")
        slack.send(MESSAGE)
        assert server.requests == [("POST", "/services/T00/B00/hunter2")]
        assert server.bodies == [{"text": "*[job1] disk full*\ndisk: 95 % used\n\njob job1, node n1"}]
    assert "hunter2" not in slack.name


def test_a_command_gets_the_message_on_its_stdin(tmp_path: Path) -> None:
    """Whatever has no scheme of its own is reached so."""
    code = f"import sys; open({str(tmp_path / 'said')!r}, 'w').write(sys.stdin.read())"
    (tmp_path / "tell.py").write_text(code)
    channel(f"exec:{sys.executable} {tmp_path / 'tell.py'}").send(MESSAGE)
    assert '"title": "[job1] disk full"' in (tmp_path / "said").read_text()


def test_a_redirect_is_no_delivery(web: WebServer) -> None:
    """A POST that is redirected would become a GET, whose 200 proves nothing."""
    web.status, web.headers = 302, {"Location": f"http://127.0.0.1:{web.port}/elsewhere"}
    with pytest.raises(NotDelivered, match="the server answered 302"):
        channel(f"http://127.0.0.1:{web.port}/hook").send(MESSAGE)
    assert web.requests == [("POST", "/hook")]


def test_a_storm_of_a_thousand_events_is_one_message_and_a_count(web: WebServer) -> None:
    """From ten threads' worth of causes, within a second."""
    told = notifier(f"http://127.0.0.1:{web.port}/hook", SendPace(gather_s=0.3, pause_s=60))
    for number in range(1000):
        told.tell(f"cause {number % 10}", f"text {number % 10}")
    web.wait_for(bodies=1)
    assert told.close(5) == {}
    [body] = web.bodies
    assert body["total"] == 1000
    assert [event["count"] for event in body["events"]] == [100] * 10
    assert "1000 events" in body["title"]


def test_a_server_that_refuses_gets_the_message_once_it_recovers(web: WebServer) -> None:
    """503 twice, then 200: one message arrives, with what happened meanwhile, and the log has two lines."""
    lines: list[str] = []
    web.status = 503
    told = notifier(f"http://127.0.0.1:{web.port}/hook", SendPace(0, 0), lines.append)
    told.tell("a", "first")
    web.wait_for(requests=1)
    told.tell("b", "second")
    web.recover()
    web.wait_for(bodies=1)
    assert told.close(5) == {}
    [body] = web.bodies
    assert [event["text"] for event in body["events"]] == ["first", "second"]
    assert [line.partition(":")[0] for line in lines] == ["notifications to http", "notifications to http"]
    assert "fail: the server answered 503 Service Unavailable; next try in 1 s" in lines[0]
    assert lines[1].endswith("arrive again")


def test_a_server_that_is_not_there_gets_the_message_once_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused connection is tried again."""
    with Sink() as sink:
        port = sink.port
    lines: list[str] = []
    told = notifier(f"smtp://localhost:{port}/?to=a@example.org", SendPace(0, 0), lines.append)
    told.tell("a", "first")
    deadline = time.monotonic() + 10
    while not lines and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "Connection refused" in lines[0]
    again = Sink()
    again._controller.port = port
    again._controller.start()
    try:
        assert told.close(10) == {}
    finally:
        again._controller.stop()
    assert [mail["Subject"] for mail in again.mails] == ["[job1] first"]


def test_a_mail_server_that_refuses_gets_the_message_once_it_recovers() -> None:
    """As one that greylists: one mail, with what happened meanwhile, and the server's words in the log."""
    lines: list[str] = []
    with Sink() as sink:
        sink.refusing.set()
        told = notifier(f"smtp://localhost:{sink.port}/?to=a@example.org", SendPace(0, 0), lines.append)
        told.tell("a", "first")
        deadline = time.monotonic() + 10
        while not lines and time.monotonic() < deadline:
            time.sleep(0.01)
        told.tell("b", "second")
        sink.refusing.clear()
        assert told.close(10) == {}
        [mail] = sink.mails
    assert "first" in mail.get_content()
    assert "second" in mail.get_content()
    assert "fail: try later; next try in 1 s" in lines[0]
    assert lines[1].endswith("arrive again")


def test_a_mail_server_that_hangs_is_given_up_and_gets_the_message_once_it_recovers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes the connection, the sender and the text, and does not answer; telling returns at once."""
    monkeypatch.setattr(channels, "SEND_S", 1.0)
    lines: list[str] = []
    with Sink() as sink:
        sink.answering.clear()
        told = notifier(f"smtp://localhost:{sink.port}/?to=a@example.org", SendPace(0, 0), lines.append)
        begun = time.monotonic()
        told.tell("a", "first")
        assert time.monotonic() - begun < slowed(channels.SEND_S)
        assert sink.asked.acquire(timeout=60)
        assert sink.asked.acquire(timeout=60), "it was not given up"
        sink.answering.set()
        assert told.close(10) == {}
        assert {mail["Subject"] for mail in sink.mails} == {"[job1] first"}
    assert "timed out" in lines[0]


def test_a_server_that_hangs_delays_nobody_and_is_given_up(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Telling returns at once, another channel delivers meanwhile, and the message arrives when it recovers."""
    monkeypatch.setattr(channels, "SEND_S", 1.0)
    web.hanging.set()
    with web_server() as other:
        urls = [f"http://127.0.0.1:{server.port}/hook" for server in (web, other)]
        told = Notifier([channel(url) for url in urls], SendPace(0, 0), "job1", "n1", quiet)
        begun = time.monotonic()
        told.tell("a", "first")
        assert time.monotonic() - begun < slowed(channels.SEND_S)
        other.wait_for(bodies=1)
        web.wait_for(requests=2)
        web.status = 200
        web.hanging.clear()
        web.wait_for(bodies=1)
        assert told.close(5) == {}


def test_what_was_not_delivered_at_the_end_is_handed_back(web: WebServer) -> None:
    """After the limit, by channel, so that the next run can send it."""
    web.status = 500
    told = notifier(f"http://127.0.0.1:{web.port}/hook", SendPace(0, 0))
    told.tell("a", "first")
    web.wait_for(requests=1)
    begun = time.monotonic()
    assert told.close(0.5) == {f"http://127.0.0.1:{web.port}": [("a", "first", 1)]}
    assert time.monotonic() - begun < slowed(3.0)


def test_the_secret_of_a_webhook_is_in_no_error(web: WebServer) -> None:
    """Neither in the channel's name nor in what a server says."""
    web.status, web.reason = 404, f"no {SECRET} here"
    hook = channel(f"http://127.0.0.1:{web.port}/{SECRET}?token={SECRET}")
    with pytest.raises(NotDelivered) as raised:
        hook.send(MESSAGE)
    assert str(raised.value) == "the server answered 404 no *** here"
    assert SECRET not in hook.name


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"smtp://ops:{SECRET}@host/?to=a@b", "has a password in it; write {env:NAME} or {file:PATH} there"),
        (f"https://ops:{SECRET}@host/", "https://...@host has a login, which only mail can have"),
        (f"ftp://host/{SECRET}", "a URL that begins 'ftp' is not supported; give one of smtp://HOST/?to=ADDRESS"),
        (f"https:///{SECRET}", "a URL that begins 'https' has no host, or no usable port; give one of"),
        (f"https://host:port/{SECRET}", "a URL that begins 'https' has no host, or no usable port; give one of"),
        ("smtp://host/", "smtp://host needs ?to=ADDRESS"),
        ("smtp://host/?to=a%0Ab", "smtp://host has a line break or the like in an address"),
        ("exec:", "exec: has no command"),
    ],
)
def test_a_channel_that_cannot_be_is_refused_without_its_secret(url: str, said: str) -> None:
    """One line at the start, not an error in the night."""
    with pytest.raises(UsageError) as raised:
        channel(url)
    assert said in str(raised.value)
    assert SECRET not in str(raised.value)


def test_a_secret_that_is_not_there_is_named_at_the_start(tmp_path: Path) -> None:
    """The variable, and the file, by their names."""
    with pytest.raises(UsageError, match="needs the variable NO_SUCH_VARIABLE, which is not set"):
        channel("https://host/{env:NO_SUCH_VARIABLE}").check()
    with pytest.raises(UsageError, match=r"needs the file .*absent: No such file"):
        channel(f"exec:tell {{file:{tmp_path}/absent}}").check()


@pytest.mark.parametrize("secure", [False, True])
def test_a_webhook_that_answers_a_byte_at_a_time_has_a_limit_for_all_of_it(
    monkeypatch: pytest.MonkeyPatch, certificates: ssl.SSLContext, secure: bool
) -> None:
    """Each byte comes well within the limit of a step. With a status, the message has arrived."""
    monkeypatch.setattr(channels, "WHOLE_S", 0.5)
    over = threading.Event()

    def drip(begin: bytes) -> int:
        server = socket.create_server(("127.0.0.1", 0))

        def serve() -> None:
            with server, server.accept()[0] as plain:
                one = certificates.wrap_socket(plain, server_side=True) if secure else plain
                with one, contextlib.suppress(OSError):  # the client goes, as it should
                    one.recv(1 << 16)
                    one.sendall(begin)
                    while not over.wait(0.02):
                        one.sendall(b"x")

        threading.Thread(target=serve, daemon=True).start()
        return int(server.getsockname()[1])

    scheme = "https" if secure else "http"
    try:
        began = time.monotonic()
        with pytest.raises(NotDelivered, match=r"the server has not answered within 0\.5 s"):
            channel(f"{scheme}://localhost:{drip(b'HTTP/1.1 200 OK')}/hook").send(MESSAGE)
        channel(f"{scheme}://localhost:{drip(WHOLE_HEAD)}/hook").send(MESSAGE)
        assert time.monotonic() - began < slowed(5.0)
    finally:
        over.set()
