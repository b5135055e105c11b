"""Plain data: what may be a configuration, an argument, a result; and states of tensors as bytes that run no code."""

from __future__ import annotations

import functools
import io
import json
import math
from types import CodeType
from typing import Any

from ..agent.errors import UsageError
from .errors import WrongReturn


def check(value: Any, where: str) -> None:
    """Raises UsageError where a value is not made of None, bools, numbers, texts, lists, tuples and dicts of them."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return
    if isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            check(item, f"{where}[{number}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, (str, int, float, bool)):
                raise UsageError(f"{where} has the key {key!r}, a {type(key).__name__}; use a text or a number")
            check(item, f"{where}[{key!r}]")
    else:
        raise UsageError(
            f"{where} is a {type(value).__name__}, and must be plain data (None, numbers, texts, lists, dicts), which "
            "all nodes can compare; make the object in a creator, from plain values"
        )


def canonical(value: Any) -> str:
    """The same text for equal plain values in every process; anything else is named by its type."""
    if isinstance(value, dict):
        pairs = sorted((canonical(key), canonical(item)) for key, item in value.items())
        return f"{{{', '.join(f'{key}: {item}' for key, item in pairs)}}}"
    if isinstance(value, (list, tuple)):
        items = ", ".join(map(canonical, value))
        return f"[{items}]" if isinstance(value, list) else f"({items})"
    if value is None or isinstance(value, bool):
        return repr(value)
    for kind in (int, float, str):
        if isinstance(value, kind):
            return repr(kind(value))  # not as a subclass shows it, such as numpy's numbers
    return f"<{type(value).__qualname__}>"


def packed(value: Any) -> Any:
    """A plain value as JSON has it, from which `unpacked` makes the same one: numbers as keys, and tuples, stay."""
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("*") for key in value):
            return {key: packed(item) for key, item in value.items()}
        return {"*dict": [[key, packed(item)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        items = [packed(item) for item in value]
        return items if isinstance(value, list) else {"*tuple": items}
    return value


def unpacked(value: Any) -> Any:
    """What `packed` was given."""
    if isinstance(value, list):
        return [unpacked(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "*dict" in value:
        return {key: unpacked(item) for key, item in value["*dict"]}
    if "*tuple" in value:
        return tuple(unpacked(item) for item in value["*tuple"])
    return {key: unpacked(item) for key, item in value.items()}


def digest(*values: Any) -> str:
    """Equal for equal plain values, on every node."""
    import hashlib

    return hashlib.sha256(_SORTED.encode(values).encode()).hexdigest()[:16]


_SORTED = json.JSONEncoder(sort_keys=True, default=str)


def code_digest(function: Any) -> str:
    """Equal for functions of the same code, on every node with the same Python; what a function finds around it is not
    looked at. Empty for one that is not written in Python."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return digest(_code(code)) if isinstance(code, CodeType) else ""


def _code(constant: Any) -> Any:
    if isinstance(constant, CodeType):
        return [constant.co_code.hex(), constant.co_names, constant.co_varnames, _code(constant.co_consts)]
    if isinstance(constant, tuple):
        return [_code(each) for each in constant]
    if isinstance(constant, frozenset):
        return sorted(repr(each) for each in constant)  # their order is another one in each process
    return repr(constant)


def numbers(value: Any) -> Any:
    """What an operator returned, with tensors and numpy's numbers of one element as numbers of Python."""
    if isinstance(value, dict):
        return {str(key): numbers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [numbers(item) for item in value]
    if hasattr(value, "item") and getattr(value, "shape", None) is not None and math.prod(value.shape) == 1:
        return value.item()
    return value


def without_numpy(value: Any) -> Any:
    """The same, with numpy's numbers as those of Python: bytes with those in them cannot be read without running
    code."""
    if type(value) is dict:
        return {without_numpy(key): without_numpy(item) for key, item in value.items()}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(without_numpy(item) for item in value)
    if isinstance(value, tuple):
        return tuple(without_numpy(item) for item in value)  # of names, whose class nobody reads
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    return value


def stays(value: Any) -> bool:
    """Whether JSON gives this back as it is: of its own types alone."""
    if type(value) is dict:
        return all(type(key) is str and stays(item) for key, item in value.items())
    if type(value) is list:
        return all(map(stays, value))
    return value is None or type(value) in (bool, int, float, str)


def to_bytes(value: Any) -> bytes:
    """As torch.save writes it."""
    import torch

    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def loadable(state: dict[Any, Any]) -> bytes:
    """As `to_bytes`. Raises WrongReturn for what no worker could load, which would end with it."""
    import torch

    from ..worker.checkpoints.files import why_unreadable
    from ..worker.checkpoints.pieces import has_memory, rebuild

    def emptied(path: object, held: torch.Tensor) -> torch.Tensor:
        return torch.empty(0) if has_memory(held) else held

    if why := why_unreadable(rebuild(state, emptied)):
        raise WrongReturn(f"the state cannot be loaded: {why}; keep plain values and tensors in it")
    return to_bytes(state)


def from_bytes(data: bytes) -> Any:
    """What `to_bytes` made, on the CPU; runs no code. Raises what torch.load(weights_only=True) raises."""
    import torch

    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
