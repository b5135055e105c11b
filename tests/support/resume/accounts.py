"""Accounts of loaders, and loops that ask them for batches."""

from __future__ import annotations

from elastic_agent.worker.data.cursors import Account, Cursor, Pass, Span


def account(*loaders: str) -> Account:
    made = Account()
    made.cursors = {name: Cursor() for name in loaders}
    return made


def give(made: Account, going: Pass, first: int, last: int, ends: bool = False) -> None:
    """The loop asks for a batch and gets it."""
    made.ask(going)
    made.hand_out(Span(going.loader, made.cursors[going.loader].ahead()[0], first, last, ends))
