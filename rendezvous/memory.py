"""Where early 0.1.0 had `MemoryStore`, which is in `rendezvous/memory_store.py` now; its page told users to import it
from here."""

from __future__ import annotations

from .memory_store import MemoryStore

__all__ = ["MemoryStore"]
