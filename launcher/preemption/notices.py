"""Notices of clouds that they take a spot host back: their metadata service is asked, as none of them calls anybody.

What each says, from its documentation: AWS, `spot/instance-action` of the instance's metadata (404 until there is a
notice; a token first, IMDSv2), two minutes before; GCP, `instance/preempted` (TRUE), 30 s before; Azure, a scheduled
event of the type Preempt, at least 30 s before.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException

from ...proto.frozen import dataclass

EVERY_S = 5.0
"""Between two questions. AWS asks for this much; the shortest notice is 30 s."""
ANSWER_S = 2.0
"""How long the service has to answer. It is on the host, or next to it."""
ANSWER_BYTES = 1 << 16
URL = "ELASTIC_AGENT_METADATA_URL"
"""Variable: where the metadata service is, in place of the cloud's address."""

_AWS = "http://169.254.169.254"
_GCP = "http://metadata.google.internal"
_AZURE = "http://169.254.169.254"

Ask = Callable[[str, str, Mapping[str, str]], str | None]
"""Method, path and headers to what the service answers; None: 404. Raises OSError."""


def aws(ask: Ask) -> str:
    """What AWS announces, in a few words; empty: nothing. Raises OSError, ValueError."""
    token = ask("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    headers = {"X-aws-ec2-metadata-token": token} if token else {}
    answer = ask("GET", "/latest/meta-data/spot/instance-action", headers)
    if answer is None:
        return ""
    told = json.loads(answer)
    return f"AWS will {told['action']} this host at {told['time']}"


def gcp(ask: Ask) -> str:
    """As `aws`, of GCP."""
    answer = ask("GET", "/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"})
    return "GCP takes this host back within 30 s" if (answer or "").strip().upper() == "TRUE" else ""


def azure(ask: Ask) -> str:
    """As `aws`, of Azure."""
    answer = ask("GET", "/metadata/scheduledevents?api-version=2020-07-01", {"Metadata": "true"})
    for event in json.loads(answer or "{}").get("Events", ()):
        if event.get("EventType") == "Preempt":
            return f"Azure takes this host back, not before {event.get('NotBefore') or 'now'}"
    return ""


CLOUDS: Mapping[str, tuple[str, Callable[[Ask], str]]] = {
    "aws": (_AWS, aws),
    "gcp": (_GCP, gcp),
    "azure": (_AZURE, azure),
}
"""By the name that the flag takes: where the service is, and how it is asked."""


@dataclass(frozen=True, slots=True)
class Service:
    """A metadata service at an address."""

    url: str

    def __call__(self, method: str, path: str, headers: Mapping[str, str]) -> str | None:
        request = urllib.request.Request(f"{self.url}{path}", method=method, headers=dict(headers))  # noqa: S310
        # Its address is of this host alone: a proxy would answer for another one.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=ANSWER_S) as answer:
                text: bytes = answer.read(ANSWER_BYTES)
                return text.decode("utf-8", "replace")
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                return None
            raise OSError(f"it answers {error.code}") from None


class Notices:
    """Asks in a thread of its own until there is a notice, or `close`."""

    def __init__(
        self,
        cloud: str,
        env: Mapping[str, str],
        announce: Callable[[str], None],
        tell: Callable[[str, bool], None],
        every_s: float = EVERY_S,
    ) -> None:
        """cloud: a key of `CLOUDS`. announce: called once, in the thread, with the notice. tell: gets sentences for
        people, and whether each is routine: that the service does not answer is told once, until it does."""
        url, self._look = CLOUDS[cloud]
        self._service = Service(env.get(URL) or url)
        self._announce, self._tell, self._every_s = announce, tell, every_s
        self._ended = threading.Event()
        self._silent = False
        self._thread = threading.Thread(target=self._run, name="elastic-agent-notices", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, after an answer that is awaited."""
        self._ended.set()
        self._thread.join(2 * ANSWER_S + 1)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                notice = self._look(self._service)
            except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError) as error:
                if not self._silent:
                    why = " ".join(str(error).split()) or type(error).__name__
                    self._tell(
                        f"no notice of a spot host can be read at {self._service.url}: {why}; asking on, every "
                        f"{self._every_s:g} s (--spot-notices)",
                        False,
                    )
                self._silent = True
            else:
                if self._silent:
                    self._tell(f"{self._service.url} answers again (--spot-notices)", False)
                self._silent = False
                if notice:
                    self._announce(notice)
                    return
            self._ended.wait(self._every_s)
