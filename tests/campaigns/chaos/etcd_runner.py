"""Lets a plan of four nodes on three servers of etcd happen, and writes down what etcd says of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from elastic_agent.rendezvous.etcd.keys import EtcdKeys
from elastic_agent.rendezvous.etcd.ops import Read
from support.etcd_servers import Servers, installed, serving
from support.network import Switch, virtual_switch, why_unavailable

from .etcd_faults import PREFIX, QUICK_LOGINS, QUOTA, ROOT, USER, EtcdFaults
from .etcd_plan import SERVERS
from .historian import Historian
from .plan import COORDINATOR, GATHERING, LAUNCH, Fault, Plan, Start
from .runner import Run

FOLDER = EtcdKeys(PREFIX, "chaos").job.removesuffix(b"job")
"""What all keys of the job begin with."""
SETTLED_S = 5.0
"""What the servers may take to end a lease, after its time."""


class EtcdRun(Run):
    """One job on a cluster of its own."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        super().__init__(plan, folder)
        self._kinds = {fault.kind for fault in plan.faults}
        self._lines: Switch | None = None
        self._servers: Servers
        self._etcd_faults: EtcdFaults
        self._historian: Historian
        self._afflictions: list[threading.Thread] = []

    def play(self) -> None:
        """As on c10d, beside servers that last as long as the run."""
        with ExitStack() as held:
            if "cut" in self._kinds and not why_unavailable():
                self._lines = held.enter_context(virtual_switch())
                for start in self.plan.starts:
                    self._lines.add(start.name)
            host = self._lines.address if self._lines else "127.0.0.1"
            versions = sorted(installed())
            version = versions[self.plan.seed % len(versions)]
            flags = ["--quota-backend-bytes", str(QUOTA)] if "no space" in self._kinds else []
            flags += QUICK_LOGINS
            place = self.folder / "servers"
            self._servers = held.enter_context(serving(version, place, size=3, flags=flags, host=host))
            if "auth revoked" in self._kinds:
                self._servers.require_login(ROOT, USER, PREFIX + "/")
            self._endpoint = ",".join(map(str, self._servers.endpoints))
            self._fact("servers", version=version, endpoints=self._endpoint)
            history = held.enter_context((self.folder / "etcd.jsonl").open("w"))
            self._historian = held.enter_context(
                closing(
                    Historian(self._servers.client(), PREFIX.encode(), FOLDER, lambda line: self._read(history, line))
                )
            )
            self._etcd_faults = EtcdFaults(self._servers, self.plan.seed, lambda: self._historian.seen)
            super().play()

    def _bury(self) -> None:
        self._etcd_faults.over.set()
        for each in self._afflictions:
            each.join()
        self._fact("remains", keys=self._remains())
        self._historian.close()
        if self._historian.error is not None:
            self._fact("unread", error=repr(self._historian.error))
        super()._bury()

    def _remains(self) -> list[str]:
        """What of the job is there when everything but its record has had the time to go with the nodes' leases."""
        until = time.monotonic() + self.plan.lease_s + SETTLED_S
        with closing(self._servers.client()) as client:
            while True:
                found = client.read(Read(FOLDER, prefix=True))
                names = [item.key.removeprefix(FOLDER).decode() for item in found.items]
                if names == ["job"] or time.monotonic() >= until:
                    return names
                with closing(client.watch(FOLDER, prefix=True, start_revision=found.revision + 1)) as watch:
                    watch.wait(until - time.monotonic())

    def _read(self, history: IO[str], line: dict[str, Any]) -> None:
        """The historian, on its thread, has read this."""
        history.write(json.dumps(line) + "\n")
        history.flush()
        if len(self._historian.pids) == sum(start.anchor == LAUNCH for start in self.plan.starts):
            self._happened.put(lambda: self._reach(GATHERING))

    def _conf(self, start: Start) -> dict[str, object]:
        conf: dict[str, object] = {"read_timeout": 90, "prefix": PREFIX}
        if self._servers.login:
            password = self.folder / "password"
            password.write_text(USER.password)
            conf |= {"user": USER.user, "password_file": password}
        return conf

    def _within(self, name: str) -> Sequence[str]:
        return self._lines.within(name) if self._lines else ()

    # -- faults -----------------------------------------------------------------------------------------------------

    def _befall(self, fault: Fault) -> None:
        if fault.kind in SERVERS:
            thread = threading.Thread(target=self._afflict, args=(fault,), daemon=True, name=f"chaos-{fault.kind}")
            self._afflictions.append(thread)
            thread.start()
        elif fault.node == COORDINATOR:
            self._befall(replace(fault, node=self._coordinator()))
        elif fault.kind == "cut":
            self._cut(fault)
        else:
            super()._befall(fault)

    def _coordinator(self) -> str:
        """Name of the node that coordinates; empty: none does."""
        pid = self._historian.pids.get(self._historian.leader)
        return next((name for name, node in self._nodes.items() if node.process.pid == pid), "")

    def _cut(self, fault: Fault) -> None:
        if self._lines is None or fault.node not in self._live:
            self._fact("spared", fault=fault.ident, kind=fault.kind, node=fault.node, because=why_unavailable())
            return
        self._fact("fault", fault=fault.ident, kind=fault.kind, node=fault.node)
        self._lines.cut(fault.node)
        self._at(time.monotonic() + fault.for_s, lambda: self._mend(fault.node))

    def _mend(self, name: str) -> None:
        assert self._lines is not None
        self._lines.mend(name)
        self._fact("thaw", node=name)

    def _afflict(self, fault: Fault) -> None:
        self._happened.put(lambda: self._fact("fault", fault=fault.ident, kind=fault.kind, node=""))
        error = ""
        try:
            self._etcd_faults.inject(fault.kind, fault.for_s)
        except Exception as why:  # noqa: BLE001 - a fault that went wrong is a finding of its own
            error = f"{type(why).__name__}: {why}"
        self._happened.put(lambda: self._fact("passed", fault=fault.ident, kind=fault.kind, error=error))
