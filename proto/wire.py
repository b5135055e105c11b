"""The message classes of elastic.proto, made without the half of protobuf that is written in Python.

upb, the usual runtime of protobuf, needs none of what the generated module loads (`elastic_pb2.py`: 50 modules, among
them another runtime, the text format and pickle), which was a fifth of what a joining agent imports. Where there is no
upb, or another runtime is asked for, the generated module is loaded.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .elastic_pb2 import Agreement as Agreement  # noqa: PLC0414 - for others to import, as all of these
    from .elastic_pb2 import Answer as Answer  # noqa: PLC0414
    from .elastic_pb2 import Crowd as Crowd  # noqa: PLC0414
    from .elastic_pb2 import Ending as Ending  # noqa: PLC0414
    from .elastic_pb2 import JobRecord as JobRecord  # noqa: PLC0414
    from .elastic_pb2 import Judged as Judged  # noqa: PLC0414
    from .elastic_pb2 import Member as Member  # noqa: PLC0414
    from .elastic_pb2 import NodeRecord as NodeRecord  # noqa: PLC0414
    from .elastic_pb2 import Page as Page  # noqa: PLC0414
    from .elastic_pb2 import Request as Request  # noqa: PLC0414
    from .elastic_pb2 import RoleSize as RoleSize  # noqa: PLC0414
    from .elastic_pb2 import Round as Round  # noqa: PLC0414
    from .elastic_pb2 import Served as Served  # noqa: PLC0414
    from .elastic_pb2 import Witness as Witness  # noqa: PLC0414
    from .elastic_pb2 import WorkerFailure as WorkerFailure  # noqa: PLC0414

CHOSEN = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
"""The variable by which people choose protobuf's runtime."""


def _classes() -> dict[str, object]:
    """The class of each message, by name."""
    try:
        if CHOSEN in os.environ:
            raise ImportError(f"{CHOSEN} is set")
        from google._upb import _message as upb
        from google.protobuf.message import Message

        from .elastic_bytes_pb2 import SERIALIZED

        made = upb.default_pool.AddSerializedFile(SERIALIZED).message_types_by_name
        about = {"__module__": f"{__package__}.elastic_pb2"}
        return {name: upb.MessageMeta(name, (Message,), {**about, "DESCRIPTOR": each}) for name, each in made.items()}
    except (ImportError, AttributeError, TypeError):  # another runtime, or another version of this one
        from . import elastic_pb2

        return {name: getattr(elastic_pb2, name) for name in elastic_pb2.DESCRIPTOR.message_types_by_name}


if not TYPE_CHECKING:
    globals().update(_classes())
