"""Runs a plan of four nodes on three etcd servers, and records its history as read from etcd."""

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

from ..plan import COORDINATOR, GATHERING, LAUNCH, Fault, Plan, Start
from ..runner import Run
from .faults import PREFIX, QUICK_LOGINS, QUOTA, ROOT, USER, EtcdFaults
from .history import HistoryReader
from .plan import SERVERS

FOLDER = EtcdKeys(PREFIX, "chaos").job.removesuffix(b"job")
"""What all keys of the job begin with."""
SETTLED_S = 5.0
"""How long the servers may take to end a lease that has run out."""


class EtcdRun(Run):
    """One job on a cluster of its own."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        super().__init__(plan, folder)
        self._kinds = {fault.kind for fault in plan.faults}
        self._network: Switch | None = None
        self._servers: Servers
        self._etcd_faults: EtcdFaults
        self._history: HistoryReader
        self._fault_threads: list[threading.Thread] = []

    def play(self) -> None:
        """As on c10d, with servers that run as long as the job."""
        with ExitStack() as stack:
            if "cut" in self._kinds and not why_unavailable():
                self._network = stack.enter_context(virtual_switch())
                for start in self.plan.starts:
                    self._network.add(start.name)
            host = self._network.address if self._network else "127.0.0.1"
            versions = sorted(installed())
            version = versions[self.plan.seed % len(versions)]
            flags = ["--quota-backend-bytes", str(QUOTA)] if "no space" in self._kinds else []
            flags += QUICK_LOGINS
            place = self.folder / "servers"
            self._servers = stack.enter_context(serving(version, place, size=3, flags=flags, host=host))
            if "auth revoked" in self._kinds:
                self._servers.require_login(ROOT, USER, PREFIX + "/")
            self._endpoint = ",".join(map(str, self._servers.endpoints))
            self._fact("servers", version=version, endpoints=self._endpoint)
            file = stack.enter_context((self.folder / "etcd.jsonl").open("w"))
            self._history = stack.enter_context(
                closing(
                    HistoryReader(
                        self._servers.client(), PREFIX.encode(), FOLDER, lambda line: self._record(file, line)
                    )
                )
            )
            # Once: agents that start read it.
            self._password.write_text(USER.password)
            self._etcd_faults = EtcdFaults(self._servers, self.plan.seed, lambda: self._history.read_up_to)
            super().play()

    def _clean_up(self) -> None:
        self._etcd_faults.ending.set()
        for each in self._fault_threads:
            each.join()
        self._fact("keys left", keys=self._keys_left())
        self._history.close()
        if self._history.error is not None:
            self._fact("history error", error=repr(self._history.error))
        super()._clean_up()

    def _keys_left(self) -> list[str]:
        """The job's keys, once all but its record have had the time to be removed with the nodes' leases."""
        until = time.monotonic() + self.plan.lease_s + SETTLED_S
        with closing(self._servers.client()) as client:
            while True:
                found = client.read(Read(FOLDER, prefix=True))
                names = [item.key.removeprefix(FOLDER).decode() for item in found.items]
                if names == ["job"] or time.monotonic() >= until:
                    return names
                with closing(client.watch(FOLDER, prefix=True, start_revision=found.revision + 1)) as watch:
                    watch.wait(until - time.monotonic())

    def _record(self, file: IO[str], line: dict[str, Any]) -> None:
        """Record a change of etcd's keys; on the history reader's thread."""
        file.write(json.dumps(line) + "\n")
        file.flush()
        if len(self._history.pids) == sum(start.anchor == LAUNCH for start in self.plan.starts):
            self._happened.put(lambda: self._reach(GATHERING))

    @property
    def _password(self) -> Path:
        return self.folder / "password"

    def _conf(self, start: Start) -> dict[str, object]:
        conf: dict[str, object] = {"read_timeout": 90, "prefix": PREFIX}
        if self._servers.login:
            conf |= {"user": USER.user, "password_file": self._password}
        return conf

    def _within(self, name: str) -> Sequence[str]:
        return self._network.within(name) if self._network else ()

    # -- faults -----------------------------------------------------------------------------------------------------

    def _inject(self, fault: Fault) -> None:
        if fault.kind in SERVERS:
            thread = threading.Thread(
                target=self._inject_into_servers, args=(fault,), daemon=True, name=f"chaos-{fault.kind}"
            )
            self._fault_threads.append(thread)
            thread.start()
        elif fault.node == COORDINATOR:
            self._inject(replace(fault, node=self._coordinator()))
        elif fault.kind == "cut":
            self._cut(fault)
        else:
            super()._inject(fault)

    def _coordinator(self) -> str:
        """Name of the node that coordinates; empty: none does."""
        pid = self._history.pids.get(self._history.leader)
        return next((name for name, node in self._nodes.items() if node.process.pid == pid), "")

    def _cut(self, fault: Fault) -> None:
        if self._network is None or fault.node not in self._live:
            self._fact("fault skipped", fault=fault.ident, kind=fault.kind, node=fault.node, because=why_unavailable())
            return
        self._fact("fault", fault=fault.ident, kind=fault.kind, node=fault.node)
        self._network.cut(fault.node)
        self._at(time.monotonic() + fault.for_s, lambda: self._mend(fault.node))

    def _mend(self, name: str) -> None:
        assert self._network is not None
        self._network.mend(name)
        self._fact("thaw", node=name)

    def _inject_into_servers(self, fault: Fault) -> None:
        self._happened.put(lambda: self._fact("fault", fault=fault.ident, kind=fault.kind, node=""))
        error = ""
        try:
            self._etcd_faults.inject(fault.kind, fault.for_s)
        except Exception as why:  # noqa: BLE001 - a fault that failed is a finding of its own
            error = f"{type(why).__name__}: {why}"
        self._happened.put(lambda: self._fact("fault over", fault=fault.ident, kind=fault.kind, error=error))
