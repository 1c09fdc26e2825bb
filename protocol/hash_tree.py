"""Hash tree over the chunks of a blob: 32 bytes name a blob of any size, and any chunk of it can be proved. Pure.

A leaf is made of a chunk's digest. Each level pairs the nodes of the one below from the left; a last one without a
partner moves up as it is, as in RFC 6962. The top is bound to the blob's two sizes. The *proof* of a chunk holds the
siblings on its way to the top, lowest first: 16 digests in a blob of 140 GB. Leaves and inner nodes have domains of
their own, so that neither passes for the other.
"""

from __future__ import annotations

from collections.abc import Iterable

from blake3 import blake3

from p2prl.protocol.digests import DIGEST_BYTES, Digest, digest

_LEAF, _NODE, _TREE = "p2prl/blob-leaf/v1", "p2prl/blob-node/v1", "p2prl/blob-tree/v1"
_PAIR_LENGTH = (2 * DIGEST_BYTES).to_bytes(8, "little")


def leaf_of(chunk_name: bytes) -> Digest:
    """The leaf of a chunk, by the chunk's digest."""
    return digest(_LEAF, chunk_name)


def node_of(pair: bytes) -> Digest:
    """The node above two others, joined: `digest(domain, pair)` in one call."""
    return Digest(blake3(_PAIR_LENGTH + pair, derive_key_context=_NODE).digest())


def bound_top(size_bytes: int, chunk_bytes: int, top: bytes) -> Digest:
    """The hash of the whole tree: a proof that fits it is one for a blob of these sizes and no other."""
    return digest(_TREE, size_bytes.to_bytes(8, "little"), chunk_bytes.to_bytes(8, "little"), top)


def level_sizes(count: int) -> list[int]:
    """Nodes of each level of a tree with `count` leaves (1 or more), the leaves first."""
    sizes = [count]
    while sizes[-1] > 1:
        sizes.append((sizes[-1] + 1) // 2)
    return sizes


def sibling_places(index: int, count: int) -> list[int]:
    """Places of the siblings on a leaf's way to the top, lowest first, in the nodes of all levels one after another."""
    places, first = [], 0
    for size in level_sizes(count):
        sibling = index ^ 1
        if sibling < size:
            places.append(first + sibling)
        first, index = first + size, index // 2
    return places


def top_by_proof(leaf: bytes, index: int, count: int, proof: bytes) -> Digest | None:
    """The top that a proof leads to; None where the tree has no such leaf, or its proof another length."""
    if not 0 <= index < count:
        return None
    node, used = leaf, 0
    for size in level_sizes(count):
        if (index ^ 1) < size:
            sibling = proof[used : used + DIGEST_BYTES]
            if len(sibling) != DIGEST_BYTES:
                return None
            used += DIGEST_BYTES
            node = node_of(sibling + node if index & 1 else node + sibling)
        index //= 2
    return Digest(node) if used == len(proof) else None


class TreeBuilder:
    """Builds a tree while the chunks go by. Holds 64 bytes a chunk: 2 MB for a blob of 140 GB."""

    def __init__(self, chunk_names: Iterable[bytes] = ()) -> None:
        self._levels: list[bytearray] = [bytearray()]
        for name in chunk_names:
            self.add(name)

    def add(self, chunk_name: bytes) -> None:
        """The digest of the next chunk."""
        node: bytes = leaf_of(chunk_name)
        for number, level in enumerate(self._levels):
            level += node
            if len(level) % (2 * DIGEST_BYTES):
                return
            node = node_of(bytes(level[-2 * DIGEST_BYTES :]))
            if number + 1 == len(self._levels):
                self._levels.append(bytearray(node))
                return

    @property
    def nodes(self) -> bytes:
        """The nodes of all levels, one after another, each level as in `level_sizes`. At least one chunk was added."""
        levels: list[bytes] = []
        carried = b""
        for number, size in enumerate(level_sizes(len(self._levels[0]) // DIGEST_BYTES)):
            level = bytes(self._levels[number]) if number < len(self._levels) else b""
            if len(level) // DIGEST_BYTES < size:
                level += carried
            levels.append(level)
            last = level[-2 * DIGEST_BYTES :] if size % 2 == 0 else level[-DIGEST_BYTES:]
            carried = last if size % 2 else node_of(last)
        return b"".join(levels)


def top_of(nodes: bytes) -> Digest:
    """The top among the nodes of a whole tree."""
    return Digest(nodes[-DIGEST_BYTES:])


def proof_among(nodes: bytes, index: int, count: int) -> bytes:
    """A leaf's proof, from the nodes of a whole tree."""
    starts = (place * DIGEST_BYTES for place in sibling_places(index, count))
    return b"".join(nodes[start : start + DIGEST_BYTES] for start in starts)
