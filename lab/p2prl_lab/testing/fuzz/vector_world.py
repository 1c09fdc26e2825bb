"""The run of the wire's golden vectors: valid bodies of every kind, and keys to sign hostile ones with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from p2prl.protocol import limits
from p2prl.protocol.digests import Digest, digest
from p2prl.protocol.envelope import DOMAINS, NO_RUN, SIGNED_MESSAGES, Envelope, envelope_digest
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_chain import GENESIS, append
from p2prl.protocol.ledger_messages import Countersignature, LedgerHead
from p2prl.protocol.link_messages import LINK_MESSAGES
from p2prl.protocol.manifests import DTYPE_BYTES, PolicyManifest, RunManifest, Sampling

NOW = 1_800_000_001.0
"""A second after the vectors were signed."""

LEARNER, VOLUNTEER = Identity(bytes(range(16))), Identity(bytes(range(16, 32)))
"""The keys of the vectors: of the run, and of the group, the verdict and the delegation."""

_LEARNERS = frozenset(
    {
        Kind.RUN_MANIFEST,
        Kind.POLICY_MANIFEST,
        Kind.POLICY_HEAD,
        Kind.STORAGE_RECEIPT,
        Kind.RECEIPTS,
        Kind.VERDICT_CHECKS,
        Kind.LEDGER_HEAD,
        Kind.INTRODUCTION,
        Kind.STANDBY,
    }
)
"""Kinds that a hostile learner signs; all others are a hostile volunteer's."""


@dataclass(frozen=True)
class VectorWorld:
    """The vectors (`tests/vectors/wire.json`) and their keys."""

    bodies: Mapping[Kind, bytes]
    """A valid encoded body of each signed kind."""
    run: Digest
    """The run's name."""
    frames: Mapping[Kind, bytes]
    """A valid frame of each link message."""
    link: str

    @classmethod
    def of(cls, vectors: Mapping[str, Any]) -> VectorWorld:
        """`KeyError` when a kind has no vector.

        The run gets the weights of its policy and the length of its large group, which the vectors do not agree on, so
        all is signed again.
        """
        signed = {k: bytes.fromhex(vectors["envelopes"][k.name.lower()]["bytes"]) for k in SIGNED_MESSAGES}
        bodies = {k: msgspec.msgpack.decode(raw, type=Envelope).body for k, raw in signed.items()}
        policy = msgspec.msgpack.decode(bodies[Kind.POLICY_MANIFEST], type=PolicyManifest)
        manifest = msgspec.msgpack.decode(bodies[Kind.RUN_MANIFEST], type=RunManifest)
        fitted = msgspec.structs.replace(
            manifest,
            parameters=policy.weights.size_bytes // DTYPE_BYTES[manifest.dtype],
            sampling=Sampling(1.0, limits.MAX_COMPLETION_TOKENS, 2),
        )
        bodies[Kind.RUN_MANIFEST] = msgspec.msgpack.encode(fitted)
        run = envelope_digest(_sealed(Kind.RUN_MANIFEST, bodies[Kind.RUN_MANIFEST], NO_RUN))
        head = _sealed(Kind.LEDGER_HEAD, bodies[Kind.LEDGER_HEAD], run)
        bodies[Kind.COUNTERSIGNATURE] = msgspec.msgpack.encode(Countersignature(head))
        return cls(
            bodies=bodies,
            run=run,
            frames={k: bytes.fromhex(vectors["frames"][body.__name__]) for k, body in LINK_MESSAGES.items()},
            link=str(vectors["link"]),
        )

    @cached_property
    def envelopes(self) -> Mapping[Kind, bytes]:
        """A valid envelope of each signed kind."""
        return {kind: self.sealed(kind, body) for kind, body in self.bodies.items()}

    @cached_property
    def ledger(self) -> tuple[tuple[bytes, ...], bytes]:
        """Entries of a ledger, from the first on, and the learner's signed head of it."""
        entries, head = [], GENESIS
        for height, kind in enumerate((Kind.RECEIPTS, Kind.VERDICT, Kind.VERDICT_CHECKS)):
            raw, head = append(height, head, self.envelopes[kind])
            entries.append(raw)
        return tuple(entries), self.sealed(Kind.LEDGER_HEAD, msgspec.msgpack.encode(LedgerHead(3, head, 1, True)))

    @cached_property
    def pool(self) -> tuple[bytes, ...]:
        """Names and keys that mean something in this run."""
        names = (envelope_digest(raw) for raw in self.envelopes.values())
        weights = msgspec.msgpack.decode(self.bodies[Kind.POLICY_MANIFEST], type=PolicyManifest).weights
        return (*names, weights.root, weights.tree_hash, LEARNER.public_key, VOLUNTEER.public_key, self.run, bytes(32))

    def sealed(self, kind: Kind, payload: bytes) -> bytes:
        """Any bytes as the body of a correctly signed envelope, which `envelope.seal` refuses to make."""
        return _sealed(kind, payload, NO_RUN if kind is Kind.RUN_MANIFEST else self.run)


def _sealed(kind: Kind, payload: bytes, run: bytes) -> bytes:
    author = LEARNER if kind in _LEARNERS else VOLUNTEER
    sent_ms = int(NOW * 1000)
    signed = digest(DOMAINS[kind], run, author.public_key, sent_ms.to_bytes(8, "little"), payload)
    made = Envelope(int(kind), run, author.public_key, sent_ms, payload, author.sign_raw(signed))
    return msgspec.msgpack.encode(made)
