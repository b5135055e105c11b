"""The members of a large round on pages: each node reads the one that its id names, whatever the size of the job.

Pages are written before the announcement that names them by a digest of all, and never change, so a node that holds a
page of that digest does not read it again. Whoever asks for the whole membership reads all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

from ...proto import wire
from ...proto.frozen import dataclass, replace
from ..records import Crowd, Member, Round
from . import fields, limits
from .digest import sha256
from .fields import bounded, check_head, checked, parse, utf8
from .limits import MAX_ROUND_BYTES
from .records import member_from_message, member_to_message

PAGE_MAGIC = 0x31704145
DIGEST_BYTES = 12


@dataclass(frozen=True, slots=True)
class Page:
    """Some members of a round, by group rank, and how many workers of the whole round have each of their roles."""

    members: tuple[Member, ...]
    roles: tuple[tuple[str, int], ...]


def paged(members: Sequence[Member]) -> tuple[Crowd, dict[str, bytes]] | None:
    """The pages of these members by their names in the store, and what an announcement says of them; None if it lists
    the members itself. Raises ForeignBytes, as `encode_round`."""
    if len(members) <= limits.INLINE_MEMBERS:
        return None
    count = -(-len(members) // limits.PAGE_MEMBERS)
    pages: list[list[Member]] = [[] for _ in range(count)]
    workers: Counter[str] = Counter()
    for member in members:
        pages[_page_of(member.node, count)].append(member)
        workers[member.role] += member.nproc
    values = [_encode_page(page, workers) for page in pages]
    digest = sha256(b"".join(sha256(value).digest() for value in values)).digest()[:DIGEST_BYTES].hex()
    crowd = Crowd(len(members), workers.total(), count, digest)
    return crowd, {_name(crowd, number): value for number, value in enumerate(values)}


def without_members(announcement: Round, crowd: Crowd) -> Round:
    """The announcement as it is written where the members are on pages."""
    return replace(announcement, members=(), crowd=crowd)


def own_page(crowd: Crowd, node: str) -> str:
    """The name of the page that this node is on, if it is a member."""
    return _name(crowd, _page_of(node, crowd.pages))


def all_pages(crowd: Crowd) -> list[str]:
    """The names of all pages."""
    return [_name(crowd, number) for number in range(crowd.pages)]


def with_page(announcement: Round, crowd: Crowd, page: Page) -> Round:
    """The announcement as a node gets it that holds this page."""
    return replace(announcement, members=page.members, crowd=replace(crowd, roles=page.roles))


def whole(announcement: Round, pages: Iterable[Page]) -> Round:
    """The announcement with all of its members."""
    members = sorted((member for page in pages for member in page.members), key=lambda member: member.group_rank)
    return replace(announcement, members=tuple(members), crowd=None)


def decode_page(data: bytes) -> Page:
    """The page in these bytes. Raises ForeignBytes if they hold anything else."""
    message = wire.Page()
    parse("page of members", message, data, MAX_ROUND_BYTES)
    check_head("page of members", message.magic, PAGE_MAGIC, message.version)
    roles = tuple((each.role, checked("workers", each.workers)) for each in message.roles)
    return Page(tuple(member_from_message(member) for member in message.members), roles)


def _encode_page(members: Sequence[Member], workers: Mapping[str, int]) -> bytes:
    roles = dict.fromkeys(member.role for member in members)
    message = wire.Page(
        magic=PAGE_MAGIC,
        version=fields.PROTOCOL_VERSION,
        members=[member_to_message(member) for member in members],
        roles=[wire.RoleSize(role=utf8(role), workers=checked("workers", workers[role])) for role in roles],
    )
    return bounded("page of members", message.SerializeToString(), MAX_ROUND_BYTES)


def _page_of(node: str, pages: int) -> int:
    return crc32(node.encode("utf-8", "replace")) % pages


def _name(crowd: Crowd, page: int) -> str:
    return f"places/{crowd.digest}/{page}"
