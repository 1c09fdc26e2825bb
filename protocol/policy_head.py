"""The policy head: which versions there are now, and what each step between them costs in bytes.

A manifest says what a version is; the head says which one is the newest and which patches lead to it, so that a peer
that was away plans its way in one look. Only the learner signs one, and it expires: a peer that hears none for longer
knows that it has been cut off from fresh word, or the learner has stopped, and says so.
"""

from __future__ import annotations

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.digests import DIGEST_BYTES
from p2prl.protocol.manifests import NO_BASE
from p2prl.protocol.wire_codec import Wire


class PatchEdge(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One patch: from the words of `base` to those of `version`."""

    version: int
    base: int
    """Version it starts from; `NO_BASE` for a keyframe."""
    size_bytes: int
    manifest: bytes
    """Envelope digest of the version's manifest, which lists the patch's chunks."""


class PolicyHead(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The learner's newest word on its versions."""

    version: int
    """The newest."""
    manifest: bytes
    """Envelope digest of its manifest."""
    oldest: int
    """The oldest whose groups can still be trained on."""
    weight_bytes: int
    """What a version costs whole, the other way to reach it."""
    edges: tuple[PatchEdge, ...]
    """Patches of the versions from `oldest` on, and older ones as far as they fit."""
    target_ms: int
    """When the newest version should be everywhere: about when the next one is due."""
    expires_ms: int
    """After this the head is no longer fresh word."""

    def check(self, *, sent_ms: int) -> None:
        """Raise `RemoteProtocolError` naming the first impossible field."""
        _require(0 <= self.oldest <= self.version < 1 << 48, "version or oldest out of range")
        _require(len(self.manifest) == DIGEST_BYTES, "manifest must be a digest")
        _require(0 < self.weight_bytes < 1 << 48, "weight_bytes out of range")
        _require(len(self.edges) <= limits.MAX_HEAD_EDGES, "too many edges")
        _require(len({(edge.version, edge.base) for edge in self.edges}) == len(self.edges), "an edge stands twice")
        for edge in self.edges:
            _require(NO_BASE <= edge.base < edge.version <= self.version, "an edge leads to no earlier version")
            _require(0 < edge.size_bytes < self.weight_bytes, "an edge costs as much as the weights")
            _require(len(edge.manifest) == DIGEST_BYTES, "an edge names no manifest")
        newest = {bytes(edge.manifest) for edge in self.edges if edge.version == self.version}
        _require(newest <= {self.manifest}, "an edge of the newest version names another manifest")
        _require(0 <= self.target_ms < 1 << 53, "target_ms out of range")
        life_ms = self.expires_ms - sent_ms
        _require(0 < life_ms <= limits.MAX_HEAD_LIFE_S * 1000, "expires_ms is out of range")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RemoteProtocolError(f"policy head: {message}")
