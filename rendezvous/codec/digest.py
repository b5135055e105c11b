"""SHA-256, of Python's own where it has one: hashlib loads OpenSSL, 3.7 MiB that an agent needs for nothing else.

The standard library's `random` does the same. Where Python was built without its own (Fedora, RHEL) hashlib's serves.
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
