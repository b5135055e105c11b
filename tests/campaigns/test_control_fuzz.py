"""A short run of `make fuzz-control` against a real agent."""

from __future__ import annotations

import pytest

from campaigns.control import control_fuzz

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("way", [(), ("--page",)], ids=["socket", "page"])
def test_mutated_requests_are_answered_or_closed_and_leave_the_agent_as_it_was(
    way: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """No answer of 500, no growth, and the node still works."""
    assert control_fuzz.main([*way, "--inputs", "5000", "--seed", "15"]) == 0
    assert "the node is working" in capsys.readouterr().out


def test_mutated_calls_over_tcp_leave_the_agent_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    """It answers as before, and has not grown once its threads have their memory."""
    assert control_fuzz.main(["--tcp", "--inputs", "10000", "--seed", "15"]) == 0
    assert "a call is answered after" in capsys.readouterr().out
