"""The page of a job: one file that asks nobody else, live from a real agent, and written from a file of events."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_agent.control.ctl import event_sources
from elastic_agent.control.page.render import render, report
from support.outside.browser import CHROMIUM, Browser
from support.procfs import slowed

pytestmark = pytest.mark.slow
LIMIT_BYTES = 60_000
RUN_S = 120
SHOWN_S = 1.0
SCRIPT = """
import pathlib, sys, time
print("begun", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
if not pathlib.Path(sys.argv[1] + "2").exists():
    pathlib.Path(sys.argv[1] + "2").touch()
    pathlib.Path(sys.argv[1]).unlink()
    sys.exit(3)
"""

STATE: dict[str, Any] = {
    "job": {
        "run_id": "shown", "phase": "running", "round": 2, "because": "node1 is lost", "name": "node0",
        "min_nodes": 1, "max_nodes": 2, "world_size": 2, "age_s": 60.0,
        "nodes": [
            {"name": "node0", "state": "working", "group_rank": 0, "nproc": 1},
            {"name": "node1", "state": "lost", "heard_age_s": 9.0, "group_rank": 1, "nproc": 1},
        ],
    },
    "workers": {"name": "node0", "workers": [{"rank": 0, "state": "running"}]},
    "goodput": {
        "name": "node0", "workers": 1, "measured": True,
        "buckets": {"useful steps": 50.0, "re-forming": 30.0, "waiting for peers": 15.0, "saving": 5.0},
        "ranks": [{"steps": 10, "stepped_s": 5.0}, {"rank": 1, "steps": 10, "stepped_s": 5.0}],
    },
}  # fmt: skip
"""A state as the stream has it: a node of each kind, and a bucket of each."""


class Job:
    """An agent with a page, whose worker fails when it is told to, and ends the second time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.order = folder, folder / "order"
        self.events = folder / "events"
        (folder / "train.py").write_text(SCRIPT)
        flags = ["--page", "--max-restarts", "1", "--log-dir", "/dev/null", "--rdzv-id", "shown"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "elastic_agent", *flags, str(folder / "train.py"), str(self.order)],
            env={**os.environ, "ELASTIC_AGENT_EVENTS": str(self.events)}, stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self.process.stderr is not None
        self.address = ""
        while not self.address:
            line = self.process.stderr.readline()
            assert line, "the agent named no page"
            self.address = "".join(re.findall(r"the page of this job: (http://127\.0\.0\.1:\d+/[0-9a-f]{32}/)$", line))

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=RUN_S)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.end()


def test_the_page_is_small_and_lets_only_itself_run() -> None:
    """No address of anything else is in it, and its policy has the digests of its own script and style."""
    page = render().decode()
    assert len(page.encode()) <= LIMIT_BYTES
    assert not re.search(r"(src|href|url|@import)\s*[=(]", page)
    assert "http" not in page.replace("http-equiv", "")
    policy = "".join(re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page))
    assert policy.startswith("default-src 'none'; connect-src 'self'; ")
    assert "unsafe" not in policy
    for tag, text in re.findall(r"<(script|style)>(.*?)</\1>", page, re.DOTALL):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "style=" not in page
    assert not re.search(r"\son[a-z]+=", page)


def test_what_a_worker_prints_cannot_end_the_data_of_a_report() -> None:
    """The data stands in a script element, and is JSON whatever is in it."""
    event = {"what": "event", "at_s": 1.0, "because": "</script><script>alert(1)</script><!--"}
    page = report([event], "a test").decode()
    data = page.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(data)["events"] == [event]


def test_the_page_is_served_to_who_knows_its_address(job: Job) -> None:
    """It is the file; without the secret there is nothing, and nothing can be changed."""
    with urllib.request.urlopen(job.address, timeout=RUN_S) as answer:
        assert answer.read() == render()
        assert answer.headers["Cache-Control"] == "no-store"
    base = job.address[:-33]
    for path, method in (
        (base, "GET"),
        (f"{base}{'0' * 32}/", "GET"),
        (f"{job.address}more", "GET"),
        (job.address, "POST"),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(path, method=method), timeout=RUN_S)
        refused.value.close()
        assert refused.value.code in (404, 405)


def test_what_happens_is_in_the_stream(job: Job) -> None:
    """Events, the state, and what the worker prints; then the failure, and the round that follows."""
    seen: list[dict[str, Any]] = []
    with urllib.request.urlopen(f"{job.address}stream", timeout=RUN_S) as stream:
        assert stream.headers["Content-Type"] == "text/event-stream"
        # The worker, started with -u, writes a line in two pieces.
        while not "".join(message.get("log", {}).get("text", "") for message in seen).startswith("begun\n"):
            seen += _messages(stream.readline())
        job.order.touch()
        while not any(message.get("event", {}).get("because", "").startswith("round 2 begins") for message in seen):
            seen += _messages(stream.readline())
        while "state" not in seen[-1] or seen[-1]["state"]["job"]["round"] != 2:
            seen += _messages(stream.readline())
        job.order.touch()
        for line in stream:
            seen += _messages(line)
    assert job.process.wait(RUN_S) == 0
    assert {"event", "state", "log"} == {key for message in seen for key in message}
    assert any(message["event"]["what"] == "concluded" for message in seen if "event" in message)


def _messages(line: bytes) -> list[dict[str, Any]]:
    assert line in (b"", b"\n") or line.startswith(b"data: "), line
    return [json.loads(line[6:])] if line.startswith(b"data: ") else []


def _shown_after(job: Job, since_s: float, seen: dict[str, float]) -> dict[str, float]:
    """Seconds from the first event in the file with each reason to the frame that showed it."""
    begun: dict[str, float] = {}
    for event in map(json.loads, job.events.read_text().splitlines()):
        if event.get("because"):
            begun.setdefault(event["because"], event["time_s"])
    late = {}
    for because, at_s in begun.items():
        if at_s > since_s:
            shown = [first_s for text, first_s in seen.items() if because in text]
            assert shown, f"never stood there: {because}"
            late[because] = min(shown) - at_s
    return late


def open_empty(browser: Browser, folder: Path) -> None:
    """A page without an event; a test gives it the state and output that it is to show."""
    told = folder / "report.html"
    told.write_bytes(report([], "a test"))
    browser.open(told.as_uri())
    browser.wait_for("none yet")


@pytest.mark.skipif(not CHROMIUM, reason="no chromium on PATH; .ci/run unpacks one of Debian's")
def test_what_colour_says_stands_there_in_words_and_patterns_too(tmp_path: Path) -> None:
    """A lost node beside a working one, and one bucket of each kind, on a screen without colours; and how long a step
    takes each rank, from the second look on."""
    browser = Browser(tmp_path)
    try:
        open_empty(browser, tmp_path)
        browser.call("Emulation.setEmulatedVisionDeficiency", type="achromatopsia")
        browser.evaluate(f"take({json.dumps({'state': STATE})}); draw()")
        browser.wait_for("goodput 50.0 %")
        ranks = [{"steps": 20, "stepped_s": 9.0}, {"rank": 1, "steps": 15, "stepped_s": 9.0}]
        later = {**STATE["goodput"], "ranks": ranks}
        browser.evaluate(f"take({json.dumps({'state': {**STATE, 'goodput': later}})}); draw()")
        browser.wait_for("rank 1, 15")
        steps = browser.evaluate(
            "[...document.querySelectorAll('#steps .row')]"
            ".map(e => [...e.querySelectorAll('span')].map(s => s.innerText))"
        )
        assert steps == [["rank 0, 20", "0.4 s"], ["rank 1, 15", "0.8 s"]]
        nodes, borders = browser.evaluate(
            "(items => [items.map(e => e.innerText), items.map(e => getComputedStyle(e).borderTopStyle)])"
            "([...document.querySelectorAll('#nodes > li')])"
        )
        assert [each.splitlines()[1] for each in nodes] == ["working", "! lost, last sign 9.0 s ago"]
        assert borders == ["solid", "dashed"]
        parts = browser.evaluate(
            "[...document.querySelectorAll('#goodput .part')]"
            ".map(e => [e.innerText, e.title, getComputedStyle(e).backgroundImage])"
        )
        legend = browser.evaluate("[...document.querySelectorAll('#goodput .row')].map(e => e.innerText)")
        assert [title for _, title, _ in parts] == list(STATE["goodput"]["buckets"])
        assert len({pattern for _, _, pattern in parts}) == len(parts) == len(legend)
        for (letter, title, _), line in zip(parts, legend, strict=True):
            assert f"{letter} {title}" in line
    finally:
        browser.close()


@pytest.mark.skipif(not CHROMIUM, reason="no chromium on PATH; .ci/run unpacks one of Debian's")
def test_a_report_tells_rounds_of_several_starts_apart(tmp_path: Path) -> None:
    """Of a job that its queue has started again, with the same file of events: each start has a round 1."""
    told = []
    for number, failed in enumerate(("boom", "bang")):
        node = f"node0:{number}"
        for version, (phase, because) in enumerate((("running", "all are here"), ("over", failed)), 1):
            at_s = 10.0 * number + version
            told.append({"what": "announced", "node": node, "at_s": at_s, "number": 1, "phase": phase,
                         "because": because, "version": version, "id": f"announced/{version}",
                         "cause": "announced/1"})  # fmt: skip
        told.append({"what": "concluded", "node": node, "at_s": 10.0 * number + 3, "because": failed})
    (tmp_path / "events").write_text("".join(f"{json.dumps(each)}\n" for each in told))
    page = tmp_path / "report.html"
    event_sources.write_report(str(page), event_sources.events([str(tmp_path / "events")], list), ["events"])
    browser = Browser(tmp_path)
    try:
        browser.open(page.as_uri())
        browser.wait_for("start 2, round 1")
        rows = browser.evaluate("[...document.querySelectorAll('#rounds p')].map(e => e.innerText)")
        assert [each.rpartition("; ")[2] for each in rows] == ["ended: bang", "ended: boom"]
    finally:
        browser.close()


@pytest.mark.skipif(not CHROMIUM, reason="no chromium on PATH; .ci/run unpacks one of Debian's")
def test_output_stands_on_the_page_as_a_terminal_shows_it(tmp_path: Path) -> None:
    """A progress bar by what it drew last, also before its line has an end; no colours. A spare node is none of the
    round's, and of many ranks' steps the slowest is named."""
    browser = Browser(tmp_path)
    try:
        open_empty(browser, tmp_path)
        for rank, text in ((0, "\x1b[31mred\x1b[0m\r\n 1 %\r 2 %\n"), (1, "\r 3 %\r 4 %\r")):
            browser.evaluate(f"take({json.dumps({'log': {'rank': rank, 'stream': 'stderr', 'text': text}})})")
        spare = {"name": "node2", "state": "waiting", "nproc": 1}
        of = {**STATE["job"], "nodes": [*STATE["job"]["nodes"], spare], "world_size": 2}
        browser.evaluate(f"take({json.dumps({'state': {**STATE, 'job': of}})}); draw()")
        browser.wait_for("2 nodes of 1:2")
        assert browser.evaluate("document.getElementById('log').textContent") == "[0] red\n[0]  2 %\n[1]  4 %\n"
        assert browser.evaluate("[0.00001, 7170, 200000].map(span)") == ["0 s", "2 h 0 min", "2 days 7 h"]
        for step in (20, 30):
            paces = [
                {"rank": rank, "steps": step, "stepped_s": float(step + step * (rank == 299))} for rank in range(300)
            ]
            many = {**STATE["goodput"], "ranks": paces}
            browser.evaluate(f"take({json.dumps({'state': {**STATE, 'goodput': many}})}); draw()")
        browser.wait_for("and 44 ranks more; the slowest of all is rank 299: 2.0 s")
    finally:
        browser.close()


@pytest.mark.skipif(not CHROMIUM, reason="no chromium on PATH; .ci/run unpacks one of Debian's")
def test_a_browser_shows_a_change_within_a_second_and_asks_nobody_else(job: Job, tmp_path: Path) -> None:
    """Live, narrow as a phone, and once more as a file from the events of the job that has ended."""
    browser = Browser(tmp_path)
    try:
        browser.open(job.address)
        browser.wait_for("[0] begun")
        browser.wait_for("round 1")
        browser.watch("#events td:last-child")
        opened_s = time.time()
        job.order.touch()
        browser.wait_for("round 2 begins")
        browser.wait_for("ended by failure")
        assert browser.narrow(360) <= 360
        job.order.touch()
        assert job.process.wait(RUN_S) == 0
        browser.wait_for("the agent does not answer")
        late = _shown_after(job, opened_s, browser.first_seen("this node's workers all finished"))
        assert len(late) >= 5, late
        assert max(late.values()) <= slowed(SHOWN_S), late
        assert {each.partition(job.address)[1] for each in browser.requests if each != "about:blank"} == {job.address}
        assert [each for each in browser.console if "ERR_CONNECTION" not in each and "ERR_INCOMPLETE" not in each] == []
        told = tmp_path / "report.html"
        command = [sys.executable, "-m", "elastic_agent.control.ctl", "report", str(job.events), "-o", str(told)]
        subprocess.run(command, check=True, timeout=RUN_S)
        browser.requests.clear()
        browser.open(told.as_uri())
        browser.wait_for("the job succeeded")
        shown = browser.text()
        assert "ended by failure" in shown
        assert "not measured" in shown
        assert browser.requests == [told.as_uri()]
    finally:
        browser.close()
