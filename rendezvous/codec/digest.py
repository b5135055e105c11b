"""SHA-256 from Python's built-in module: hashlib loads OpenSSL, 3.7 MiB that an agent needs for nothing else.

The standard library's `random` does the same. A Python built without that module (Fedora, RHEL) uses hashlib.
"""

from __future__ import annotations

__all__ = ["sha256"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import sha256
else:
    try:
        from _sha2 import sha256  # Python 3.12 and newer
    except ImportError:
        try:
            from _sha256 import sha256
        except ImportError:
            from hashlib import sha256
