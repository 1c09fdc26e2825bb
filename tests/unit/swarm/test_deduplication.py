"""Bounded memory of accepted envelopes."""

from __future__ import annotations

from p2prl.protocol.digests import Digest
from p2prl.swarm.gossip.deduplication import SeenEnvelopes


def digest_of(number: int) -> Digest:
    return Digest(number.to_bytes(32, "big"))


def test_the_longest_unseen_envelope_is_forgotten_first() -> None:
    seen = SeenEnvelopes(3)
    for number in (1, 2, 3, 1, 4):
        seen.add(digest_of(number))
    assert [number for number in range(1, 5) if digest_of(number) in seen] == [1, 3, 4]


def test_a_forgotten_envelope_is_new_again() -> None:
    seen = SeenEnvelopes(3)
    seen.add(digest_of(1))
    seen.forget(digest_of(1))
    seen.forget(digest_of(2))
    assert digest_of(1) not in seen
