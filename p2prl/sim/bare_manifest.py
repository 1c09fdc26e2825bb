"""The manifest of a run without a model, for swarms that only move bytes."""

from __future__ import annotations

from p2prl.protocol.identity import Identity
from p2prl.protocol.manifests import RunManifest, Sampling, TaskShare
from p2prl.sim.virtual_time import START


def run_manifest_of(learner: Identity, *, weight_bytes: int = 4) -> RunManifest:
    """The manifest of a run without a model, whose versions have weights of this size, a multiple of four."""
    return RunManifest(
        name="rehearsal",
        goal="Move random bytes and agree on them.",
        learner=learner.public_key,
        created_ms=int(START * 1000),
        base_model="none",
        parameters=weight_bytes // 4,
        layout=bytes(32),
        dtype="float32",
        files=(),
        tokenizer=bytes(32),
        tasks=(TaskShare("chain4", 1.0),),
        sampling=Sampling(1.0, 8, 4),
        staleness_bound=8,
        publish_every=1,
        reward="success",
        licence="Apache-2.0",
        content_policy="Arithmetic.",
    )
