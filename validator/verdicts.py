"""Verdicts on rollout groups: inspect each group, replay the valid ones in one batch, and report the outcome."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Protocol

from p2prl.models.groups.group_work import Inspection, ReplayTools
from p2prl.models.replay.group_replay import replay_groups
from p2prl.protocol.ledger_messages import Verdict
from p2prl.protocol.manifests import PolicyManifest
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.signed_group import SignedGroup
from p2prl.protocol.verdict_probes import candidate_tokens


class Judge(Protocol):
    """Makes the verdicts of a batch, as `judge` does."""

    def __call__(
        self, tools: ReplayTools, manifest: PolicyManifest, groups: Sequence[SignedGroup], *, validator: bytes
    ) -> list[tuple[Verdict, Inspection]]:
        """One verdict for each group, and what was inspected."""
        ...


def judge(
    tools: ReplayTools, manifest: PolicyManifest, groups: Sequence[SignedGroup], *, validator: bytes
) -> list[tuple[Verdict, Inspection]]:
    """One verdict for each group, and what was inspected. `validator` is the public key that will sign them.

    All groups declare the policy of `manifest`, and the scorer holds its weights.
    """
    bodies = [signed.group for signed in groups]
    inspections = [tools.work.inspect(signed.group, peer=signed.author, beacon=manifest.beacon) for signed in groups]
    # A group must name its policy's version, or it would be credited to another one.
    faults = [
        inspection.reason if body.version == manifest.version else RejectionReason.UNKNOWN_POLICY
        for body, inspection in zip(bodies, inspections, strict=True)
    ]
    sound = [i for i, fault in enumerate(faults) if not fault]
    work = [(bodies[i], inspections[i]) for i in sound]
    candidates = [
        candidate_tokens(groups[i].digest, [ids[-1] for ids in inspections[i].token_ids], tools.work.vocabulary)
        for i in sound
    ]
    replayed = replay_groups(
        tools.scorer, work, run_dtype=tools.work.dtype, measured=tools.baselines.measured, candidates=candidates
    )
    replays = dict(zip(sound, replayed, strict=True))
    # The policy's time will do: evidence decays over days.
    for i, found in zip(sound, replayed, strict=True):
        tools.baselines.record(
            found.pair, groups[i].author, found.evidence, found.reason, now=manifest.created_ms / 1000.0
        )
    verdicts = []
    for i, (signed, body) in enumerate(zip(groups, bodies, strict=True)):
        replay = replays.get(i)
        reason = faults[i] or (replay.reason if replay else "")
        verdict = Verdict(
            group=signed.digest,
            peer=signed.author,
            version=body.version,
            passed=not reason,
            reason=str(reason),
            tokens=replay.tokens if replay else 0,
            mismatched=replay.mismatched if replay else 0,
            worst_margin=_finite(replay.worst_margin) if replay else 0.0,
            probes=replay.probes.chosen_by(validator, signed.digest) if replay and replay.probes else b"",
        )
        verdicts.append((verdict, inspections[i]))
    return verdicts


def _finite(margin: float) -> float:
    """A margin that a verdict can encode: a policy with logits that are not finite gives the largest."""
    return margin if math.isfinite(margin) else sys.float_info.max
