"""Sign policy heads: the newest version, every available patch, the due time of the next version, and an expiry.

A head is signed with every version, and again before it expires while there is no new one.
"""

from __future__ import annotations

import math

from p2prl.clock import Clock
from p2prl.learner.published_policies import PublishedPolicies
from p2prl.learner.signing_sender import SigningSender
from p2prl.protocol import limits
from p2prl.protocol.policy_head import PatchEdge, PolicyHead

_EXPIRES_S = 900.0
"""How long a head stays valid: after a quarter of an hour a volunteer reports that the learner is silent."""

_RENEW_S = 120.0
"""Time after which a head is renewed without a new version: several reach every peer before the first expires."""

_FIRST_INTERVAL_S = 60.0
"""Assumed time between two versions until two are published."""

_MAX_INTERVAL_S = 3600.0
"""Longest interval announced: a run that was stopped overnight must not set a distant target time."""


class PolicyHeads:
    """Signs and sends heads of the published versions."""

    def __init__(self, published: PublishedPolicies, sender: SigningSender, clock: Clock) -> None:
        self._published = published
        self._sender = sender
        self._clock = clock
        self._interval_s = _FIRST_INTERVAL_S
        self._signed_at = -math.inf

    def note_interval(self, seconds: float) -> None:
        """Record the time between two versions: the next one is expected after the same time."""
        self._interval_s = min(_MAX_INTERVAL_S, max(0.0, seconds))

    def send(self) -> None:
        """Sign a head of the newest version and send it."""
        self._sender.send(self._sign())

    def renew(self) -> None:
        """Send a head again when the last one is `_RENEW_S` old."""
        if self._published.newest is not None and self._clock.now() - self._signed_at >= _RENEW_S:
            self.send()

    def current(self) -> list[bytes]:
        """A head signed now, for a network that has just started; none before the first version."""
        return [] if self._published.newest is None else [self._sign()]

    def _sign(self) -> bytes:
        newest = self._published.newest
        assert newest is not None
        self._signed_at = now = self._clock.now()
        kept = self._published.all()
        edges = [
            PatchEdge(policy.manifest.version, patch.base, patch.blob.size_bytes, policy.digest)
            for policy in kept
            for patch in policy.manifest.patches
        ]
        head = PolicyHead(
            version=newest.manifest.version,
            manifest=newest.digest,
            oldest=kept[-1].manifest.version,
            weight_bytes=newest.manifest.weights.size_bytes,
            edges=tuple(edges[: limits.MAX_HEAD_EDGES]),
            target_ms=newest.manifest.created_ms + int(1000 * self._interval_s),
            expires_ms=int((now + _EXPIRES_S) * 1000),
        )
        return self._sender.sign(head)
