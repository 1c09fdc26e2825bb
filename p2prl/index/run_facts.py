"""Facts of a run in its listing: taken from its manifest by the learner, held against it by everybody else. Pure."""

from __future__ import annotations

import msgspec

from p2prl.config.machine_limits import least_disk
from p2prl.config.requirements import requirements_of
from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.join_link import JoinLink
from p2prl.protocol.kinds import Role
from p2prl.protocol.listing import (
    MAX_LINK_CHARS,
    Listing,
    OpenedListing,
    State,
    check_source,
    claimed,
    cut,
)
from p2prl.protocol.listing_life import USUAL_LIFE_S
from p2prl.protocol.manifests import RunManifest
from p2prl.quantity_text import size_text

LEAST_SHARE = 0.8
"""Part of this program's own estimate that a listing must admit to: another release may estimate a little less."""

_BYTES_PER_TOKEN = 6
_FRAME_BYTES = 30_000
"""Of a group beside its tokens (`protocol/limits.py`, `MAX_GROUP_BYTES`)."""

_MOST_ADDRESSES = 4


def listing_of(
    manifest: RunManifest,
    link: JoinLink,
    *,
    state: State,
    volunteers: int,
    missing: int | None,
    now: float,
    board: str = "",
) -> Listing:
    """The listing of a run at `now`, seconds since the epoch; it expires after `USUAL_LIFE_S`. Its link has the first
    addresses of `link`, as many as fit."""
    memory, disk = _needs(manifest)
    sent_ms = int(now * 1000)
    listing = Listing(
        link="",
        name=manifest.name,
        goal=cut(manifest.goal),
        content=cut(manifest.content_policy),
        base_model=cut(manifest.base_model),
        parameters=manifest.parameters,
        memory_bytes=memory,
        disk_bytes=disk,
        group_bytes=group_bytes(manifest),
        state=state,
        volunteers=volunteers,
        missing=missing,
        since_ms=manifest.created_ms,
        sent_ms=sent_ms,
        expires_ms=sent_ms + int(USUAL_LIFE_S * 1000),
        board=board,
    )
    for addresses in range(_MOST_ADDRESSES, -1, -1):
        short = str(JoinLink(link.name, link.run, link.bootstrap[:addresses]))
        listing = msgspec.structs.replace(listing, link=short)
        if len(short) <= MAX_LINK_CHARS:
            break
    return listing


def group_bytes(manifest: RunManifest) -> int:
    """Most bytes of one group of the run."""
    sampling = manifest.sampling
    tokens = sampling.group_size * sampling.max_new_tokens
    return min(limits.MAX_GROUP_BYTES, _FRAME_BYTES + _BYTES_PER_TOKEN * tokens)


def checked_manifest(opened: OpenedListing, manifest_raw: bytes) -> RunManifest:
    """The run's manifest, once the listing is of its learner and claims nothing else than it.

    Raises `RemoteProtocolError` with the sentence to show otherwise.
    """
    manifest = check_source(opened, manifest_raw)
    if different := claimed(opened.listing, manifest):
        raise RemoteProtocolError(different)
    memory, disk = _needs(manifest)
    for what, claim, fact in (
        ("memory", opened.listing.memory_bytes, memory),
        ("disk", opened.listing.disk_bytes, disk),
        ("upload for a group", opened.listing.group_bytes, group_bytes(manifest)),
    ):
        if claim < LEAST_SHARE * fact:
            raise RemoteProtocolError(
                f"the listing's {what} is {size_text(claim)}, and by the run's manifest it takes {size_text(fact)}"
            )
    return manifest


def _needs(manifest: RunManifest) -> tuple[int, int]:
    """Memory and disk that a volunteer needs, bytes."""
    needs = requirements_of(manifest, Role.VOLUNTEER)
    return needs.private_bytes(on_cpu=True), least_disk(needs, Role.VOLUNTEER)
