"""A headless Chromium, by its debugging pipe: no driver, no library, no port."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium") or ""
"""Empty: there is none here."""
BOUND_S = 60.0
WATCH = """(selector => {
  const seen = window.firstSeen = {};
  const look = () => document.querySelectorAll(selector).forEach(
    each => { seen[each.innerText] ??= Date.now() / 1000; });
  const painted = () => requestAnimationFrame(() => setTimeout(look));
  look();
  new MutationObserver(painted).observe(document.body, {childList: true, subtree: true, characterData: true});
})(%s)"""
"""Notes when each text first stood in an element that fits a selector, after the frame that showed it was drawn."""


class Browser:
    """One page in it, with what it asked for and what its console said."""

    def __init__(self, folder: Path) -> None:
        ours, theirs_out = os.pipe()
        theirs_in, self._to = os.pipe()
        self._from = ours
        os.set_blocking(ours, False)
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            "--window-size=1100,1400",
        ]
        # Chromium reads commands from descriptor 3 and answers on 4.
        script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, CHROMIUM, *flags, f"--user-data-dir={folder}/profile", "about:blank"],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._read, self._number, self._session = b"", 0, ""
        self.requests: list[str] = []
        """Addresses that the page has asked for."""
        self.console: list[str] = []
        """What its console has, errors of policies included."""
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(each["targetId"] for each in targets if each["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Have it do something; returns its answer."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": params}
        if self._session:
            asked["sessionId"] = self._session
        os.write(self._to, json.dumps(asked).encode() + b"\0")
        deadline = time.monotonic() + BOUND_S
        while True:
            message = self._next(deadline)
            if message.get("id") == self._number:
                assert "error" not in message, message
                found: dict[str, Any] = message["result"]
                return found

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._read:
            left_s = deadline - time.monotonic()
            assert left_s > 0, "the browser does not answer"
            if select.select([self._from], [], [], left_s)[0]:
                data = os.read(self._from, 1 << 20)
                assert data, "the browser has gone"
                self._read += data
        text, _, self._read = self._read.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        params = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif message.get("method") == "Log.entryAdded":
            self.console.append(params["entry"]["text"])
        elif message.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.console.append(json.dumps(params))
        return message

    def open(self, address: str) -> None:
        """Load a page."""
        self.call("Page.navigate", url=address)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of its script."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def text(self) -> str:
        """What stands on it now."""
        return str(self.evaluate("document.body ? document.body.innerText : ''"))

    def wait_for(self, text: str, bound_s: float = BOUND_S) -> float:
        """Until this stands there; returns how long that took."""
        began = time.monotonic()
        while text not in (shown := self.text()):
            assert time.monotonic() < began + bound_s, f"{text!r} does not stand there:\n{shown}"
            select.select([], [], [], 0.02)
        return time.monotonic() - began

    def watch(self, selector: str) -> None:
        """From now on, note when a text first stands in one of these elements."""
        self.evaluate(WATCH % json.dumps(selector))

    def first_seen(self, last: str) -> dict[str, float]:
        """Those texts, with their time in seconds since 1970, once there is one with `last` in it."""
        deadline = time.monotonic() + BOUND_S
        while True:
            seen = {str(text): float(at_s) for text, at_s in self.evaluate("window.firstSeen").items()}
            if any(last in text for text in seen):
                return seen
            assert time.monotonic() < deadline, f"{last!r} does not stand there: {seen}"
            select.select([], [], [], 0.02)

    def narrow(self, width: int) -> int:
        """As wide as a phone; returns how wide the page is then."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=2, mobile=True)
        return int(self.evaluate("document.documentElement.scrollWidth"))

    def picture(self, width: int, height: int) -> bytes:
        """What it looks like, as PNG."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    def close(self) -> None:
        """End it."""
        os.close(self._to)  # it ends with its pipe
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)
