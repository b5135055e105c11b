"""docs/state-machines.md, drawn from the transition tables: `python -m tests.project.diagrams` writes it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TypeVar

from elastic_agent.agent.lifecycle import machine as agent
from elastic_agent.agent.lifecycle.state import Phase
from elastic_agent.rendezvous.coordinator import machine as coordinator
from elastic_agent.rendezvous.records import RoundPhase

PAGE = Path(__file__).resolve().parents[2] / "docs" / "state-machines.md"

P = TypeVar("P", bound=Enum)

HEAD = """# The two state machines

Drawn from the tables in the code (`EDGES`) by `python -m tests.project.diagrams`; a test fails when this page and the
code disagree, and another when the simulator never walks one of these edges. Do not edit it by hand.
"""


def page() -> str:
    """The whole page."""
    return "\n".join(
        [
            HEAD,
            "## The coordinator: the phases of a round\n",
            "One node at a time is the coordinator. Its machine is `rendezvous/coordinator/machine.py`.",
            "A successor resumes it in the phase that was announced last (`rendezvous/coordinator/takeover.py`).\n",
            _diagram(coordinator.EDGES, RoundPhase.GATHERING, RoundPhase.CLOSED),
            _legend(RoundPhase),
            "## The agent: the phases of a node\n",
            "Every node runs this one. Its machine is `agent/lifecycle/machine.py`.\n",
            _diagram(agent.EDGES, Phase.CONNECTING, Phase.ENDED),
            _legend(Phase),
        ]
    )


def _diagram(edges: Mapping[tuple[P, P], str], first: P, last: P) -> str:
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first.name}"]
    lines += [f"    {before.name} --> {after.name}: {occasion}" for (before, after), occasion in edges.items()]
    return "\n".join([*lines, f"    {last.name} --> [*]", "```", ""])


def _legend(phases: type[Enum]) -> str:
    return "\n".join(["Phases: " + ", ".join(f"`{phase.name}` ({phase.value})" for phase in phases) + ".", ""])


if __name__ == "__main__":
    PAGE.write_text(page())
