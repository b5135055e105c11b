"""Reads etcd with the package etcd3, an independent client, and prints the keys as JSON.

Runs in an environment of its own (`make .foreign/.ready`), as etcd3 needs an old protobuf.
Its argument is a JSON object: `host`, `port`, `prefix`, and other arguments of `etcd3.client`.
"""

from __future__ import annotations

import json
import sys

import etcd3


def main(asked: dict[str, str]) -> None:
    """Print {key: value} of all keys with the prefix, each byte as one character (Latin-1)."""
    prefix = asked.pop("prefix")
    client = etcd3.client(timeout=10, **asked)
    found = {meta.key.decode("latin-1"): value.decode("latin-1") for value, meta in client.get_prefix(prefix)}
    client.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
