"""Where early 0.1.0 had the plug-in for torchrun, which is `launcher/torchrun/plugin.py` now. The entry point
`elastic-etcd` in the metadata of such an installation still leads here."""

from __future__ import annotations

from .torchrun.plugin import etcd

__all__ = ["etcd"]
