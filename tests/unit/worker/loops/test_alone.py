"""A pass that goes on alone is accounted for in fewer words than all others, and alike."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_agent.worker.data.cursors import Account, Cursor, Pass, Span

LOADERS = ("a", "b")
STEPS = st.one_of(
    st.just(("step",)),
    st.just(("step",)),
    st.tuples(st.just("next"), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("next"), st.just(0), st.just(False)),
    st.tuples(st.just("begin"), st.sampled_from(LOADERS)),
    st.tuples(st.just("end"), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("evaluates"), st.sampled_from(LOADERS), st.booleans()),
    st.just(("epoch",)),
)


class Long(Account):
    """Accounts for each pass as for one of several."""

    def _note_alone(self, going: Pass, cursor: Cursor) -> None:
        return


class Script:
    """Loops of a script, as `Loader` tells the account of them."""

    def __init__(self, made: Account) -> None:
        self.account, self.passes, self.were_alone = made, list[Pass](), 0
        made.cursors = {name: Cursor() for name in LOADERS}

    def do(self, what: str, *how: Any) -> Any:
        made = self.account
        if what == "step":
            return made.step()
        if what == "begin":
            return self.passes.append(made.begin(*how))
        if what == "evaluates":
            made.cursors[how[0]].evaluates = how[1]
            return None
        if what == "epoch":
            return made.next_epoch()
        if how[0] >= len(self.passes):
            return None
        going = self.passes[how[0]]
        if what == "end":
            return made.end(self.passes.pop(how[0]), exhausted=how[1])
        return self._next(going, ends=how[1])

    def _next(self, going: Pass, ends: bool) -> bool:
        made, cursor = self.account, self.account.cursors[going.loader]
        if made.alone is going and cursor.stepped:
            cursor.stepped, done = False, True
        else:
            done = made.ask(going)
        epoch, first = cursor.ahead()
        span = Span(going.loader, epoch, first, first + 4, ends)
        if made.alone is going and not cursor.evaluates:
            self.were_alone += 1
            cursor.held.append(span)
        else:
            made.hand_out(span)
        return done

    def state(self) -> Any:
        made = self.account
        passes = [(going.gave, going.trained, going.loose, going.asked_at) for going in self.passes]
        cursors = [made.cursors[name] for name in LOADERS]
        return made.places(), made.committed, made.between_steps(), passes, made.has_begun, repr(cursors)


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_a_pass_alone_is_accounted_for_as_one_of_several(steps: list[tuple[Any, ...]]) -> None:
    short, long = Script(Account()), Script(Long())
    for step in (("begin", "a"), ("next", 0, False), ("step",), *steps):
        assert short.do(*step) == long.do(*step), step
        assert short.state() == long.state(), step


def test_a_loop_that_trains_is_alone_from_its_second_batch_on() -> None:
    script = Script(Account())
    script.do("begin", "a")
    for _ in range(5):
        script.do("next", 0, False)
        script.do("step")
    assert script.were_alone == 4
