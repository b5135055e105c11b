"""Fields of a `LaunchConfig` that a program filled with something else: named at once, in one line."""

from __future__ import annotations

import contextlib
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from elastic_agent import LaunchConfig, NodeAgent, UsageError
from elastic_agent.launcher.config.field_kinds import in_kind

ODD: tuple[Any, ...] = (
    *(None, "", 0, -1, 1.5, math.nan, math.inf, True, "x", b"x", [], {}, (), object(), [1], ["a"], [None], {None: 1}),
    *({0: 9}, {"a": 1}, {0: "x"}, {"a": "b"}, Path("no"), 10**400, "1" * 5000, "a\0b", "\ud800", set(), 1j, list),
)
"""What a program may hold where it thinks that it has a setting."""


@pytest.mark.parametrize("name", [each.name for each in fields(LaunchConfig)])
def test_whatever_a_field_holds_it_is_taken_or_refused_by_its_name(name: str) -> None:
    for value in ODD:
        with contextlib.suppress(UsageError):
            LaunchConfig(**{name: value}).validate({})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"run_id": 7}, "run_id is 7, of type int; give text"),
        ({"env": {"RATE": 1}}, "env has 1, of type int; give text"),
        ({"notify": [1]}, "notify has 1, of type int; give text"),
        ({"standalone": "false"}, "standalone is 'false', of type str; give True or False"),
        ({"exact_resume": "a\0b"}, r"exact_resume is 'a\x00b', with a character that no path or variable can have"),
        ({"rdzv_configs": "lease=5"}, "rdzv_configs is 'lease=5', of type str; give a mapping"),
    ],
)
def test_an_agent_names_the_field_before_it_starts(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        NodeAgent(LaunchConfig(**given), "train.py")
    assert str(refused.value).startswith(said)


def test_what_is_no_configuration_is_named() -> None:
    from torch.distributed.launcher.api import LaunchConfig as TorchsConfig

    for config, said in (
        ({"nproc_per_node": 2}, "config is a dict; give a LaunchConfig of elastic_agent"),
        (None, "config is a NoneType; give a LaunchConfig of elastic_agent"),
        (
            TorchsConfig(1, 1, 1),
            "config is a LaunchConfig; give a LaunchConfig of elastic_agent; elastic_agent.",
        ),
    ):
        with pytest.raises(UsageError) as refused:
            NodeAgent(config, "train.py")  # type: ignore[arg-type]  # the mistake
        assert str(refused.value).startswith(said)


def test_none_is_the_default_and_numbers_may_be_texts() -> None:
    """A program hands on what its own flags hold. None for a number says nothing of which number is meant."""
    config = in_kind(LaunchConfig(rdzv_endpoint=None, watch=None, max_nodes="4", node_rank="1"))  # type: ignore[arg-type]  # as such programs do
    assert (config.rdzv_endpoint, config.watch, config.max_nodes, config.node_rank) == ("", "", 4, 1)
    with pytest.raises(UsageError, match="max_restarts is None, of type NoneType; give a whole number"):
        in_kind(LaunchConfig(max_restarts=None))  # type: ignore[arg-type]  # as above
    plain = LaunchConfig(log_dir=Path("logs"), nproc_per_node=int, deadline=2e9)
    assert in_kind(plain) is plain


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"metrics_address": "9400"}, "metrics_address is '9400', which has no port"),
        ({"page_address": "x:y"}, "page_address is 'x:y', whose port 'y' is no number"),
        ({"watch": "hangs"}, "--watch hangs: 'hangs' is no usual watch; did you mean 'hang'"),
        ({"watch": "missing.toml"}, "missing.toml: cannot be read"),
        ({"notify": "foo://bar"}, "notify: a URL that begins 'foo' is not supported"),
    ],
)
def test_validate_finds_what_only_the_start_of_an_agent_found(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        LaunchConfig(**given).validate({})
    assert str(refused.value).startswith(said)
