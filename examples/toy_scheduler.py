"""A toy scheduler that embeds the agent: two nodes, each a process on this host; a node that dies is replaced."""

from __future__ import annotations

import os
import socket
import time
from multiprocessing import connection, get_context, process

from elastic_agent import AgentError, AgentEvent, LaunchConfig, NodeAgent, Phase


def train() -> str:
    """The work of a worker: three seconds of barriers of all workers."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for _ in range(30):
        time.sleep(0.1)
        dist.barrier()
    dist.destroy_process_group()
    return f"trained to the end in round {os.environ['ELASTIC_AGENT_ROUND']}"


def run_node(name: str, endpoint: str, report: connection.Connection) -> None:
    """A node's process: its agent's events go to the scheduler as they happen, then its workers' results."""
    rdzv = {"is_host": int(name == "node-0"), "lease": 3}
    config = LaunchConfig(min_nodes=2, max_nodes=2, run_id="toy", rdzv_endpoint=endpoint, rdzv_configs=rdzv)
    try:
        report.send(NodeAgent(config, train, name=name, on_event=report.send).run())
    except AgentError as error:
        raise SystemExit(f"{name}: {error}") from None


def start_node(name: str, endpoint: str) -> tuple[connection.Connection, process.BaseProcess]:
    reports, report = get_context("spawn").Pipe(duplex=False)
    node = get_context("spawn").Process(target=run_node, args=(name, endpoint, report))
    node.start()
    report.close()  # only the node has it now, so that `reports` ends when the node exits
    return reports, node


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as probe:
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    nodes = dict(start_node(name, endpoint) for name in ("node-0", "node-1"))
    while nodes:
        for reports in set(nodes).intersection(connection.wait(nodes)):
            try:
                item = reports.recv()
            except (EOFError, OSError):
                nodes[reports].join()
                print(f"scheduler: a node's process ended with exit code {nodes[reports].exitcode}", flush=True)
                if nodes.pop(reports).exitcode == -9:
                    nodes.update([start_node("node-2", endpoint)])
                continue
            is_event = isinstance(item, AgentEvent)
            print(f"{item.name} {item.phase.value}: {item.because}" if is_event else f"results: {item}", flush=True)
            if is_event and (item.name, item.phase) == ("node-1", Phase.WORKING):
                nodes[reports].kill()  # like a host that loses power
