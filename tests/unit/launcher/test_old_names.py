"""Imports that were documented or installed before modules moved into folders: each still gives the same object."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import elastic_agent

OLD_NAMES = [
    # where it was, where it is, its name
    ("elastic_agent.launcher.config", "elastic_agent.launcher.config.config", "LaunchConfig"),
    ("elastic_agent.launcher.config", "elastic_agent.launcher.config.config", "plan"),
    ("elastic_agent.launcher.torchrun_plugin", "elastic_agent.launcher.torchrun.plugin", "etcd"),
    ("elastic_agent.rendezvous.memory", "elastic_agent.rendezvous.memory_store", "MemoryStore"),
]


@pytest.mark.parametrize(("old", "new", "name"), OLD_NAMES)
def test_an_old_name_is_the_same_object(old: str, new: str, name: str) -> None:
    """A user's import, or the metadata of an older installation, goes on working."""
    assert getattr(import_module(old), name) is getattr(import_module(new), name)


def test_the_configuration_is_loaded_only_when_it_is_used() -> None:
    """Importing the package `launcher.config`, as each of its modules does, loads nothing else."""
    look = (
        "import sys, elastic_agent.launcher.config as c; name = 'elastic_agent.launcher.config.config'\n"
        "before = name in sys.modules; c.LaunchConfig; print(before, name in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False True\n"


def test_other_names_of_the_package_are_refused() -> None:
    """As any module refuses a name that it does not have."""
    with pytest.raises(AttributeError, match=r"'elastic_agent\.launcher\.config' has no attribute 'LunchConfig'"):
        import_module("elastic_agent.launcher.config").LunchConfig  # noqa: B018 - looking it up is the test


def test_an_error_of_the_host_still_has_its_old_name() -> None:
    """`except elastic_agent.MachineFailed` of an older program catches it."""
    assert elastic_agent.MachineFailed is elastic_agent.HostFailed
    error = elastic_agent.HostFailed("no more processes")
    error.reported = True
    assert error.told
