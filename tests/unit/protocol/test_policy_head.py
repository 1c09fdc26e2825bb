"""Policy heads: impossible values and the largest one."""

from __future__ import annotations

import msgspec
import pytest

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.envelope import seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.manifests import NO_BASE
from p2prl.protocol.policy_head import PatchEdge, PolicyHead

SENT_MS = 1_000_000
NEWEST, BEFORE = bytes((7,)) * 32, bytes((6,)) * 32
HEAD = PolicyHead(
    version=7,
    manifest=NEWEST,
    oldest=2,
    weight_bytes=1000,
    edges=(PatchEdge(7, 6, 10, NEWEST), PatchEdge(7, NO_BASE, 600, NEWEST), PatchEdge(6, 5, 11, BEFORE)),
    target_ms=SENT_MS,
    expires_ms=SENT_MS + 1000,
)


def edges(*wrong: PatchEdge) -> dict[str, object]:
    return {"edges": wrong}


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 1},
        {"version": 1 << 48},
        {"oldest": -1},
        {"oldest": 8},
        {"manifest": bytes(31)},
        {"manifest": bytes(32)},
        {"weight_bytes": 0},
        {"weight_bytes": 600},
        {"target_ms": -1},
        {"expires_ms": SENT_MS},
        {"expires_ms": SENT_MS + int(limits.MAX_HEAD_LIFE_S * 1000) + 1},
        edges(PatchEdge(8, 7, 10, NEWEST)),
        edges(PatchEdge(6, 6, 10, BEFORE)),
        edges(PatchEdge(6, -2, 10, BEFORE)),
        edges(PatchEdge(6, 5, 0, BEFORE)),
        edges(PatchEdge(6, 5, 10, b"")),
        edges(PatchEdge(6, 5, 10, BEFORE), PatchEdge(6, 5, 12, BEFORE)),
        edges(*(PatchEdge(7, i - 1, 10, NEWEST) for i in range(7)), PatchEdge(7, 3, 10, NEWEST)),
    ],
)
def test_impossible_heads_are_refused(changes: dict[str, object]) -> None:
    HEAD.check(sent_ms=SENT_MS)
    with pytest.raises(RemoteProtocolError):
        msgspec.structs.replace(HEAD, **changes).check(sent_ms=SENT_MS)


def test_heads_at_their_bounds_are_accepted() -> None:
    for changes in ({"weight_bytes": 1}, {"weight_bytes": (1 << 48) - 1}, {"version": (1 << 48) - 1}, {"oldest": 7}):
        msgspec.structs.replace(HEAD, edges=(), **changes).check(sent_ms=SENT_MS)


def test_longest_head_fits_an_envelope() -> None:
    most = limits.MAX_HEAD_EDGES
    long = tuple(PatchEdge((1 << 47) + 2 + i, 1 << 47, (1 << 40) + i, NEWEST) for i in range(most))
    head = PolicyHead((1 << 47) + 1 + most, NEWEST, 0, 1 << 41, long, SENT_MS, SENT_MS + 1)
    head.check(sent_ms=SENT_MS)
    assert len(seal(Identity(bytes(16)), head, run=bytes(32), now=1.0)) <= limits.MAX_ENVELOPE_BYTES
    with pytest.raises(RemoteProtocolError):
        msgspec.structs.replace(head, edges=(*long, PatchEdge(1, 0, 1, NEWEST))).check(sent_ms=SENT_MS)
