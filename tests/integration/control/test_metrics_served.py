"""Metrics, probes and systemd's notifications of real agents."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from elastic_agent.control.service.metrics import METRICS
from support.harness import Cluster
from support.network import free_port
from support.outside.asking import Asking
from support.source_tree import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(asking: Asking, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster("c10d", tmp_path, env=asking.env, nproc=2)
    yield made
    made.close()


def get(port: int, path: str, within_s: float = 20) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=within_s) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_metrics_of_a_job_with_a_failure_are_what_happened(cluster: Cluster) -> None:
    """Parsed by Prometheus' own client; each with its help and type, and none that is not listed."""
    port = free_port()
    node = cluster.start("one", nnodes="1", max_restarts=3, flags=("--metrics-address", f"127.0.0.1:{port}"))
    world = cluster.desk.wait_world(2)
    world[1].order("raise boom")
    cluster.desk.wait_world(2, after=1)
    status, text = get(port, "/metrics")
    assert status == 200
    found = values(text)
    assert found["elastic_agent_phase", (("phase", "working"),)] == 1
    assert found["elastic_agent_phase", (("phase", "joining"),)] == 0
    assert found["elastic_agent_rounds_started_total", ()] == 2
    assert found["elastic_agent_rounds_ended_total", (("kind", "failure"),)] == 1
    assert found["elastic_agent_rounds_ended_total", (("kind", "arrival"),)] == 0
    assert sum(value for (name, _), value in found.items() if name == "elastic_agent_worker_failures_total") == 1
    assert found["elastic_agent_restarts_used", ()] == 1
    assert found["elastic_agent_world_size", ()] == 2
    assert [found[f"elastic_agent_nodes{which}", ()] for which in ("", "_min", "_max")] == [1, 1, 1]
    assert found["elastic_agent_recovery_stage_seconds_count", (("stage", "agreed"),)] >= 1
    spent = sum(value for (name, _), value in found.items() if name == "elastic_agent_worker_time_seconds")
    assert spent == pytest.approx(2 * (time.time() - found["elastic_agent_start_time_seconds", ()]), abs=5)
    assert found["elastic_agent_lost_time_seconds", (("kind", "failure"),)] > 0
    assert found["elastic_agent_workers", (("state", "running"),)] == 2
    assert found["elastic_agent_phase_seconds_count", (("phase", "working"),)] == 1
    assert found["elastic_agent_store_available", ()] == 1
    assert found["elastic_agent_store_latency_seconds_count", ()] >= 1
    assert 0 < found["elastic_agent_store_latency_seconds_sum", ()] < 60
    assert 0 <= found["elastic_agent_lease_age_seconds", ()] < found["elastic_agent_lease_seconds", ()]
    exits = {
        labels[0][1]: value for (name, labels), value in found.items() if name == "elastic_agent_worker_exits_total"
    }
    assert exits["code"] >= 1
    assert sum(exits.values()) == 2
    assert set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)) <= set(METRICS)
    assert get(port, "/healthz") == (200, get(port, "/readyz")[1])
    assert get(port, "/other")[0] == 404
    node.terminate(signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        get(port, "/healthz", within_s=1)
    node.terminate(signal.SIGCONT)
    assert get(port, "/healthz")[0] == 200
    if promtool := shutil.which("promtool"):
        done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")
    cluster.finish()
    assert node.wait() == 0


def test_an_agent_that_waits_is_alive_and_not_ready_and_a_taken_port_ends_no_job(cluster: Cluster) -> None:
    port = free_port()
    first = cluster.start("first", nnodes="2", flags=("--metrics-address", f"127.0.0.1:{port}"))
    first.wait_text(f"metrics are served at http://127.0.0.1:{port}/metrics")
    first.wait_text("1 of at least 2 nodes joined")
    assert get(port, "/healthz")[0] == 200
    status, text = get(port, "/readyz")
    assert status == 503
    assert text.startswith("joining: ")
    second = cluster.start("second", nnodes="2", flags=("--metrics-address", f"127.0.0.1:{port}"))
    second.wait_text(f"no metrics are served: 127.0.0.1:{port}: Address already in use")
    cluster.desk.wait_world(4)
    assert get(port, "/readyz")[0] == 200
    found = values(get(port, "/metrics")[1])
    assert {labels for name, labels in found if name == "elastic_agent_node_heard_age_seconds"} == {
        (("group_rank", "0"),),
        (("group_rank", "1"),),
    }
    cluster.finish()
    assert [first.wait(), second.wait()] == [0, 0]


def test_metrics_have_the_age_and_the_size_of_the_newest_checkpoint(asking: Asking, tmp_path: Path) -> None:
    """Of real workers with the worker library, once it is on the disk; a job on one host has no lease and no store."""
    port = free_port()
    flags = ("--standalone", "--nproc-per-node", "1", "--metrics-address", f"127.0.0.1:{port}")
    script = [str(ROOT / "tests/support/workers/enduring.py"), str(tmp_path / "kept"), str(tmp_path / "notes")]
    argv = [sys.executable, "-m", "elastic_agent", *flags, *script, "1000000", "0.01"]
    with subprocess.Popen(argv, env={**os.environ, **asking.env}, stderr=subprocess.DEVNULL) as agent:
        path = asking.path(agent.pid)
        asking.wait(path, "Status", "phase", "working")
        assert not [name for name, _ in values(get(port, "/metrics")[1]) if "lease_age" in name or "latency" in name]
        asked_s = time.monotonic()
        asking.ask(path, "Save", label="now")
        while not (metrics := values(get(port, "/metrics")[1])).get(("elastic_agent_checkpoint_bytes", ())):
            assert time.monotonic() < asked_s + 60
            time.sleep(0.05)
        found = metrics["elastic_agent_checkpoint_bytes", ()]
        assert 0 < metrics["elastic_agent_checkpoint_age_seconds", ()] < time.monotonic() - asked_s
        assert metrics["elastic_agent_checkpoint_step", ()] > 0
        kept = [file for file in (tmp_path / "kept").glob("step-*/*") if file.name != "manifest.json"]
        assert found == sum(file.stat().st_size for file in kept)
        agent.terminate()


def test_systemd_is_told_when_it_is_ready_where_it_stands_and_that_its_loop_turns(
    cluster: Cluster, tmp_path: Path
) -> None:
    """By datagrams as sd_notify(3) has them; workers get none of its variables."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(30)
        env = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "2000000"}
        node = cluster.start("one", nnodes="1", env={**cluster._defaults["env"], **env})
        assert manager.recv(1000) == b"READY=1\nSTATUS=starting"
        assert manager.recv(1000) == b"WATCHDOG=1"
        told: list[bytes] = []
        while not told or not told[-1].startswith(b"STATUS=working: round 1"):
            told.append(manager.recv(1000))  # at once, as the socket holds ten datagrams and the rest is lost
        world = cluster.desk.wait_world(2)
        assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(world[0].env)
        beats = 0
        while beats < 2:  # seldom enough that no datagram is lost: a socket holds ten
            beats += manager.recv(1000) == b"WATCHDOG=1"
        node.terminate()
        while not manager.recv(1000).startswith(b"STOPPING=1\nSTATUS=end"):
            pass
        assert node.wait() == 143


@pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed (Debian: prometheus)")
def test_a_real_prometheus_scrapes_an_agent_and_loads_the_rules(cluster: Cluster, tmp_path: Path) -> None:
    """Within some seconds it has the samples of a running job, and no alert is about it."""
    port, own = free_port(), free_port()
    node = cluster.start("one", nnodes="1", flags=("--metrics-address", f"127.0.0.1:{port}"))
    cluster.desk.wait_world(2)
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ROOT / "deploy/prometheus/elastic-agent.rules.yml")],
        "scrape_configs": [{"job_name": "agents", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    argv = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address=127.0.0.1:{own}", "--log.level=error"]  # fmt: skip
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as prometheus:
        try:
            deadline = time.monotonic() + 60
            while (found := asked(own, "sum(elastic_agent_workers)")) != 2:
                assert time.monotonic() < deadline, found
                time.sleep(0.2)
            assert asked(own, 'sum(elastic_agent_phase{phase="working"})') == 1
            rules = json.loads(get(own, "/api/v1/rules")[1])["data"]["groups"][0]["rules"]
            assert len(rules) == RULES.count("- alert:")
            assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
        finally:
            prometheus.terminate()
    cluster.finish()
    assert node.wait() == 0


def asked(port: int, expression: str) -> float | None:
    """What Prometheus answers to an expression; None while it has no samples, or does not answer yet."""
    try:
        status, text = get(port, f"/api/v1/query?query={urllib.parse.quote(expression)}")
    except OSError:
        return None
    found = json.loads(text)["data"]["result"] if status == 200 else []
    return float(found[0]["value"][1]) if found else None


DASHBOARD = json.loads((ROOT / "deploy/grafana/elastic-agent.json").read_text())
RULES = (ROOT / "deploy/prometheus/elastic-agent.rules.yml").read_text()


def panels(of: dict[str, Any]) -> list[dict[str, Any]]:
    return list(of["panels"])


def test_rules_and_dashboard_use_only_names_that_exist() -> None:
    """Each metric in an expression is one that an agent exports; a histogram's by its suffixes."""
    known = set(METRICS) | {
        f"{name}{suffix}"
        for name, (kind, _) in METRICS.items()
        if kind == "histogram"
        for suffix in ("_bucket", "_sum", "_count")
    }
    expressions = [target["expr"] for panel in panels(DASHBOARD) for target in panel["targets"]]
    shown = set(re.findall(r"\belastic_agent_\w+", RULES + "\n".join(expressions)))
    assert len(shown) > 10
    assert shown <= known
    assert len(expressions) >= len(panels(DASHBOARD))


def test_the_panels_of_the_dashboard_lie_apart_and_have_numbers_of_their_own() -> None:
    numbers = [panel["id"] for panel in panels(DASHBOARD)]
    assert len(set(numbers)) == len(numbers)
    cells = [
        (x, y)
        for panel in panels(DASHBOARD)
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed (Debian: prometheus)")
def test_promtool_accepts_the_rules_and_their_tests() -> None:
    folder = ROOT / "deploy/prometheus"
    for words in (["check", "rules", "elastic-agent.rules.yml"], ["test", "rules", "elastic-agent.test.yml"]):
        done = subprocess.run(["promtool", *words], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed (Debian: prometheus)")
def test_promtool_reads_the_expression_of_every_panel(tmp_path: Path) -> None:
    expressions = [target["expr"] for panel in panels(DASHBOARD) for target in panel["targets"]]
    rules = [
        {"record": f"panel:{number}", "expr": each.replace("$__rate_interval", "5m")}
        for number, each in enumerate(expressions)
    ]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))  # JSON is YAML
    words = ["promtool", "check", "rules", str(tmp_path / "rules.yml")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(expressions)} rules found" in done.stdout


def test_each_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    """promtool tells nothing of a rule that no test asks about."""
    tests = yaml.safe_load((ROOT / "deploy/prometheus/elastic-agent.test.yml").read_text())["tests"]
    asked = [(each["alertname"], bool(each["exp_alerts"])) for test in tests for each in test["alert_rule_test"]]
    alerts = re.findall(r"- alert: (\w+)", RULES)
    assert "ElasticAgentGoodputLow" in alerts
    assert set(asked) == {(alert, fires) for alert in alerts for fires in (False, True)}


def test_the_unit_of_systemd_is_in_order(tmp_path: Path) -> None:
    """`systemd-analyze verify` finds nothing, where it is there; the exit statuses in it are those of the table."""
    text = (ROOT / "deploy/systemd/elastic-agent@.service").read_text()
    assert "Type=notify" in text
    assert "RestartPreventExitStatus=2 71 78 79 83 93" in text
    if analyze := shutil.which("systemd-analyze"):
        unit = tmp_path / "elastic-agent@one.service"
        unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE))
        done = subprocess.run(
            [analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False, env={**os.environ}
        )
        assert done.stdout + done.stderr == ""
