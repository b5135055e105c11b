"""The flags of guardrails, and what they ask of the agent."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ...agent.errors import UsageError
from ...agent.spec import GuardSpec
from ...proto.endings import ASKING, FORWARDED
from . import values
from .flag import Flag

_GUARDS = "Guardrails"
ADDRESS_MAX = 80
"""Characters of `control_address`: each node's is in the record of a round."""


def _path(name: str, value: str) -> str:
    return value


def _address(name: str, value: str) -> str:
    return values.joined(*values.endpoint(name, value, None))


def _signal(name: str, value: str) -> int:
    return _one_signal(name, value)


def _lines(name: str, value: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in value.splitlines() if line.strip())


GUARD_FLAGS: tuple[Flag, ...] = (
    Flag(
        "kill-switch",
        _GUARDS,
        "Once this file exists, all ranks save at their next step and exit, and every agent ends with 83. (none)",
        _path,
        "",
        "PATH",
        ours=True,
    ),
    Flag(
        "save-switch",
        _GUARDS,
        "Once this file exists, it is removed, and all ranks save at their next step; its first line labels the "
        "checkpoint, which is kept. (none)",
        _path,
        "",
        "PATH",
        ours=True,
    ),
    Flag(
        "kill-signal",
        _GUARDS,
        "A signal to any agent that does what --kill-switch does. (none)",
        _signal,
        "",
        "SIGNAL",
        ours=True,
    ),
    Flag(
        "save-signal",
        _GUARDS,
        "A signal to any agent that does what --save-switch does. (none)",
        _signal,
        "",
        "SIGNAL",
        ours=True,
    ),
    Flag(
        "watch",
        _GUARDS,
        "Watch the job while it runs: as a file says, or the usual way, such as hang,disk,memory. (off)",
        _path,
        "",
        "FILE.toml|NAMES",
        ours=True,
    ),
    Flag(
        "notify",
        _GUARDS,
        "Where failures of the job and alarms of --watch are sent: smtp://..., smtps://..., https://..., slack://..., "
        "exec:COMMAND; may be repeated. (nowhere)",
        _lines,
        (),
        "URL",
        ours=True,
        many=True,
    ),
    Flag("page", _GUARDS, "Serve a page that shows this job live, at an address that a line names. (off)", ours=True),
    Flag(
        "page-address",
        _GUARDS,
        "HOST:PORT of that page; port 0: a free one. Implies --page. (127.0.0.1:0)",
        _address,
        "",
        "HOST:PORT",
        ours=True,
    ),
    Flag(
        "metrics-address",
        _GUARDS,
        "Serve metrics of this node's agent for Prometheus at /metrics, and /healthz and /readyz for probes. (nowhere)",
        _address,
        "",
        "HOST:PORT",
        ours=True,
    ),
    Flag(
        "control-address",
        _GUARDS,
        "Answer elasticctl and programs on other hosts here, by gRPC with TLS. (nowhere)",
        _address,
        "",
        "HOST:PORT",
        ours=True,
    ),
    Flag("control-cert", _GUARDS, "With it: the certificate, in PEM. (none)", _path, "", "FILE", ours=True),
    Flag("control-key", _GUARDS, "With it: the certificate's key, in PEM. (none)", _path, "", "FILE", ours=True),
    Flag(
        "control-tokens",
        _GUARDS,
        "With it: who may ask, lines of `NAME read|write TOKEN`. (none)",
        _path,
        "",
        "FILE",
        ours=True,
    ),
)


def check_addresses(**addresses: str | None) -> None:
    """Whether each is a HOST:PORT, by the name of its field, or empty. Raises UsageError."""
    for name, address in addresses.items():
        if address:
            values.endpoint(name, address, None)


def check_watches(watch: str | os.PathLike[str], notify: str | Iterable[str]) -> None:
    """Whether an agent could watch this and send there, as its own start finds out. Raises UsageError."""
    urls = (notify,) if isinstance(notify, str) and notify else tuple(notify)
    if watch or urls:
        from ...control.in_agent.usual_watches import checked_table  # here: most jobs have neither

        checked_table(os.fspath(watch), urls)


def check_control(
    address: str, cert: str | os.PathLike[str], key: str | os.PathLike[str], tokens: str | os.PathLike[str]
) -> None:
    """Whether what the control service on TCP needs is given. Raises UsageError."""
    files = {"control_cert": cert, "control_key": key, "control_tokens": tokens}
    missing = [name for name, path in files.items() if not os.fspath(path)]
    if address and missing:
        raise UsageError(f"control_address is {address!r} without {', '.join(missing)}; give all four")
    if not address and len(missing) < len(files):
        raise UsageError(f"{', '.join(set(files) - set(missing))} without control_address; give all four, or none")
    if address:
        values.endpoint("control_address", address, None)
    if len(address) > ADDRESS_MAX:
        raise UsageError(f"control_address has {len(address)} characters, more than {ADDRESS_MAX}; give an IP address")


def guards(
    switches: tuple[str | os.PathLike[str], str | os.PathLike[str]],
    signals: tuple[str | int, str | int],
    others: Iterable[int],
) -> GuardSpec:
    """What the agent is to look at. `switches` and `signals`: to kill, to save. `others`: signals that mean something
    else. Raises UsageError."""
    kill_switch, save_switch = (_absolute(name, path) for name, path in zip(_SWITCHES, switches, strict=True))
    if kill_switch and kill_switch == save_switch:
        raise UsageError(f"kill_switch and save_switch are both {kill_switch!r}; give two files")
    kill_signal, save_signal = (_one_signal(name, value) for name, value in zip(_SIGNALS, signals, strict=True))
    taken = dict.fromkeys(others, "signals_to_handle or forward_signals")
    for name, number in zip(_SIGNALS, (kill_signal, save_signal), strict=True):
        if number and number in taken:
            raise UsageError(f"{name} is signal {number}, which {taken[number]} has too; give another, such as USR2")
        taken[number] = name
    return GuardSpec(kill_switch, save_switch, kill_signal, save_signal)


def ignored_signals(forwards: Iterable[int], asks: GuardSpec) -> dict[str, str]:
    """The variables that make a worker ignore what is passed on to it, or meant for its agent, from the start of its
    process."""
    by_name = {FORWARDED: forwards, ASKING: (asks.kill_signal, asks.save_signal)}
    texts = {name: ",".join(str(number) for number in numbers if number) for name, numbers in by_name.items()}
    return {name: text for name, text in texts.items() if text}


_SWITCHES, _SIGNALS = ("kill_switch", "save_switch"), ("kill_signal", "save_signal")


def _absolute(name: str, path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    if not text:
        return ""
    from ...agent.steps.switches import in_time  # here: most jobs have no switches

    if "\0" in text or in_time(lambda: os.path.isdir(text)):
        raise UsageError(f"{name} is {text!r}, which is no path of a file; give a file that need not exist")
    return os.path.abspath(text)


def _one_signal(name: str, value: str | int) -> int:
    if value in ("", 0):
        return 0
    numbers = values.forwarded(name, value if isinstance(value, str) else (value,), ())
    if len(numbers) != 1:
        raise UsageError(f"{name} is {value!r}; give one signal, such as USR2")
    return numbers[0]
