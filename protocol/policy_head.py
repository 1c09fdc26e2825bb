"""The policy head: the learner's signed announcement of the newest version and of all patches with their sizes.

A manifest describes one version. The head names the newest version and the patches that lead to it, so that a peer that
was away can plan its route at once. Only the learner signs one, and it expires. A peer whose head has expired knows
that it is cut off or that the learner has stopped, and tells its user.
"""

from __future__ import annotations

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.digests import DIGEST_BYTES
from p2prl.protocol.manifests import NO_BASE
from p2prl.protocol.wire_codec import Wire


class PatchEdge(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One patch, from the weights of `base` to those of `version`."""

    version: int
    base: int
    """Version it starts from; `NO_BASE` for a keyframe."""
    size_bytes: int
    manifest: bytes
    """Envelope digest of the version's manifest, which lists the patch's chunks."""


class PolicyHead(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The newest version and the available patches."""

    version: int
    """The newest version."""
    manifest: bytes
    """Envelope digest of its manifest."""
    oldest: int
    """The oldest version whose groups can still be trained on."""
    weight_bytes: int
    """Size of the full weights, the alternative to patches."""
    edges: tuple[PatchEdge, ...]
    """Patches of the versions from `oldest` on, and of older ones as far as they fit."""
    target_ms: int
    """When the newest version should be everywhere: about when the next one is due."""
    expires_ms: int
    """The head is invalid after this time."""

    def check(self, *, sent_ms: int) -> None:
        """Raise `RemoteProtocolError` for the first impossible field."""
        _require(0 <= self.oldest <= self.version < 1 << 48, "version or oldest out of range")
        _require(len(self.manifest) == DIGEST_BYTES, "manifest must be a digest")
        _require(0 < self.weight_bytes < 1 << 48, "weight_bytes out of range")
        _require(len(self.edges) <= limits.MAX_HEAD_EDGES, "too many edges")
        _require(len({(edge.version, edge.base) for edge in self.edges}) == len(self.edges), "an edge is listed twice")
        for edge in self.edges:
            _require(
                NO_BASE <= edge.base < edge.version <= self.version, "an edge does not start from an earlier version"
            )
            _require(0 < edge.size_bytes < self.weight_bytes, "an edge is as large as the weights")
            _require(len(edge.manifest) == DIGEST_BYTES, "an edge names no manifest")
        newest = {bytes(edge.manifest) for edge in self.edges if edge.version == self.version}
        _require(newest <= {self.manifest}, "an edge of the newest version names another manifest")
        _require(0 <= self.target_ms < 1 << 53, "target_ms out of range")
        life_ms = self.expires_ms - sent_ms
        _require(0 < life_ms <= limits.MAX_HEAD_LIFE_S * 1000, "expires_ms is out of range")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RemoteProtocolError(f"policy head: {message}")
