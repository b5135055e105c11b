"""`torchdata`'s StatefulDataLoader: a loader that speaks its `state_dict` and `load_state_dict`, without torchdata.

    loader = exact(DataLoader(data, batch_size=64, shuffle=True, num_workers=4))
    for batch in loader: ...; torch.save({"loader": loader.state_dict(), ...})

The state counts the batch that the loop has in its hands as used, as theirs does. It is two integers and what the
loader is known by, and good for any number of ranks and loader processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader

from ..data.alike import Alike
from ..data.cursors import Account, Cursor, Pass
from ..data.loader import Loader
from ..data.order import VERSION
from ..data.randomness import key_everything
from ..data.sharded import Division
from ..errors import WrongState
from ..loop.log import RunLog
from ..world import Party
from .framework_loops import DrivenAccount

AT_END = "at_end"
"""Of a state: whether the loop has the last batch of an epoch in its hands, so that the next pass gives nothing."""


class _Asked(DrivenAccount):
    """A loop that asks for the next batch, or begins anew, has used the one before."""

    def begin(self, loader: str) -> Pass:
        self._use(loader)
        return super().begin(loader)

    def ask(self, going: Pass) -> bool:
        self._use(going.loader)
        return True

    def _use(self, loader: str) -> None:
        while self.cursors[loader].held:
            self.done(loader)


class NoRun:
    """What a loader needs of a run, where there is none: a seed, and this rank among all."""

    account: Account
    division: Division | None = None
    ranks_before: int | None = 0  # not known
    between = None
    keyed = watched = False
    quiet_until_s = 0.0
    alike = Alike(Party())  # no two ranks

    def __init__(self, seed: int) -> None:
        self.account = self.driven = _Asked()
        self.committed: Callable[[], None] = lambda: None
        """Called when a batch is used."""
        self.seed, self.stopping, self.key = seed, False, key_everything
        self.rank, self.world_size = 0, 1
        if dist.is_available() and dist.is_initialized():
            self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.log = RunLog(self.rank)

    def got(self) -> None:
        return

    def gradients(self) -> None:
        return

    def asked(self) -> None:
        self.committed()


class StatefulLoader(Loader):
    """A loader that says where it is, and can be put there."""

    def __init__(self, loader: DataLoader[Any], context: NoRun, name: str, **options: Any) -> None:
        context.account.cursors[name] = Cursor()
        self._alone = context
        super().__init__(context, loader, name, **options)
        context.committed = self.committed

    @property
    def cursor(self) -> Cursor:
        return self._alone.account.cursors[self.name]

    def state_dict(self) -> dict[str, Any]:
        """The place after the batch that was handed out last."""
        while self.cursor.held:
            self._alone.driven.done(self.name)
            self.committed()
        driven = self._alone.driven
        at_end = self.name in driven.skip or (self.cursor.at_end and not driven.over.get(self.name, 0))
        return {"order": VERSION, "seed": self._alone.seed, AT_END: at_end, **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for what, mine in (("order", VERSION), ("seed", self._alone.seed)):
            if state[what] != mine:
                raise WrongState(f"loader {self.name!r}: the state has {what} {state[what]}, and this loader {mine}")
        self.go_to(int(state["epoch"]), int(state["position"]))
        if state.get(AT_END, False):
            self._alone.driven.skip.add(self.name)

    def go_to(self, epoch: int, position: int) -> None:
        """The next pass begins here."""
        self._alone.driven.skip.discard(self.name)
        self._alone.driven.go_to(self.name, epoch, position)


def exact(
    loader: DataLoader[Any],
    *,
    seed: int = 0,
    name: str = "loader",
    global_batch: int | None = None,
    random: str = "auto",
    on_sample: Callable[[int], None] | None = None,
    replay: bool = False,
) -> StatefulLoader:
    """A loader in the place of a DataLoader or StatefulDataLoader. seed and name: of its order and random numbers; two
    loaders of one job need two names. The rest is as for `Run.loader`.

    Raises NotResumable.
    """
    options = {"global_batch": global_batch, "random": random, "on_sample": on_sample, "replay": replay}
    return StatefulLoader(loader, NoRun(seed), name, **options)
