"""Targets of rollout groups and verdicts behind the wire: the checks of a learner that need no model."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec
import numpy as np

from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.replay.probes import ReplayProbes
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import Verdict
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.protocol.verdict_probes import CANDIDATES
from p2prl.protocol.wire_codec import decode
from p2prl.sim.simulated_run import SimulatedRun
from p2prl_lab.testing.fuzz import mutations
from p2prl_lab.testing.fuzz.target import Target
from p2prl_lab.testing.fuzz.values import value_of
from p2prl_lab.testing.fuzz.vector_world import VOLUNTEER, VectorWorld

_CHANGES = (mutations.of_msgpack, mutations.of_msgpack, mutations.of_bytes)
_COMPLETIONS = 2


def group_targets(world: VectorWorld, loaded: LoadedModel) -> Iterator[Target]:
    """With `loaded` as the run's model: inspection and scoring of a group, and the check of a verdict's probes."""
    run = SimulatedRun.of(loaded, staleness_bound=8, publish_every=1, seed=0)
    peer, beacon = VOLUNTEER.public_key, bytes(32)
    assignment = run.work.assign(beacon=beacon, peer=peer, slot=7)
    valid = msgspec.structs.replace(
        decode(world.bodies[Kind.ROLLOUT_GROUP], RolloutGroup, limit_bytes=1 << 20),
        policy=bytes(32),
        task=assignment.task,
        prompt=np.asarray(assignment.prompt_ids, dtype="<u4").tobytes(),
    )
    valid = msgspec.structs.replace(valid, completions=valid.completions[:1] * run.work.group_size)

    def inspect(data: bytes) -> None:
        group = decode(data, RolloutGroup, limit_bytes=1 << 24)
        group.check()
        inspection = run.work.inspect(group, peer=peer, beacon=beacon)
        if not inspection.reason:
            run.work.rewards(inspection.assignment, inspection.token_ids, account=peer)

    yield Target(
        name="group inspection",
        decode=inspect,
        examples=(msgspec.msgpack.encode(valid), world.bodies[Kind.ROLLOUT_GROUP]),
        changes=_CHANGES,
        make=lambda rng: msgspec.msgpack.encode(value_of(RolloutGroup, rng, world.pool)),
    )
    known = ReplayProbes(
        logprobs=np.full(_COMPLETIONS * CANDIDATES, -3.0, dtype="<f2").tobytes(),
        deviations=np.full(_COMPLETIONS, 1e-3, dtype="<f4").tobytes(),
    )

    def compare(data: bytes) -> None:
        verdict = decode(data, Verdict, limit_bytes=1 << 24)
        verdict.check()
        known.agree_with(verdict.probes, peer, verdict.group)

    def probed(rng: random.Random) -> bytes:
        plain = decode(world.bodies[Kind.VERDICT], Verdict, limit_bytes=1 << 20)
        return msgspec.msgpack.encode(msgspec.structs.replace(plain, probes=rng.randbytes(rng.choice((0, 1, 32, 128)))))

    yield Target(
        name="verdict's probes", decode=compare, examples=(world.bodies[Kind.VERDICT],), changes=_CHANGES, make=probed
    )
