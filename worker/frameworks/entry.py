"""The entry points that Lightning asks for callbacks. Imports nothing more unless the switch is on."""

from __future__ import annotations

from typing import Any

from .switch import directory


def lightning_callbacks() -> list[Any]:
    """The entry point that `lightning` asks for callbacks: none unless the switch is on."""
    return _callbacks("lightning.pytorch")


def pytorch_lightning_callbacks() -> list[Any]:
    """The same for the package `pytorch_lightning`, whose classes are others."""
    return _callbacks("pytorch_lightning")


def _callbacks(package: str) -> list[Any]:
    if not directory():
        return []
    import importlib

    from .lightning import callback_of

    return [callback_of(importlib.import_module(package))]
