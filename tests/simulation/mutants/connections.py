"""Planted bugs in what connections to a hosted store bring late, or break."""

from __future__ import annotations

from elastic_agent.rendezvous.c10d import opening
from elastic_agent.rendezvous.c10d import store as c10d
from elastic_agent.rendezvous.c10d.client import TcpStoreClient

from .planting import Mutant
from .syntax import ITSELF, assignment, branch, call, either, within

CONNECTIONS = (
    Mutant(
        "a late write sets the newest version back",
        c10d.C10dStore._advance_round_head,
        call(TcpStoreClient.compare_set).becomes(
            either(
                ITSELF.receiver.method(TcpStoreClient.put, ITSELF.argument(0), ITSELF.argument(2)), ITSELF.argument(2)
            )
        ),
    ),
    Mutant(
        "a connection that is closed at accept ends a newcomer",
        opening.open_c10d,
        branch(1).becomes(either(ITSELF, within("closed the connection", assignment(4).target))),
    ),
)
