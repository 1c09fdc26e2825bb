"""Verdicts on rollout groups: inspect each group, replay the valid ones in one batch, and report the outcome."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from p2prl.models.group_replay import replay_groups
from p2prl.models.group_work import Inspection, ReplayTools
from p2prl.protocol.ledger_messages import Verdict
from p2prl.protocol.manifests import PolicyManifest
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.signed_group import SignedGroup


def judge(
    tools: ReplayTools, manifest: PolicyManifest, groups: Sequence[SignedGroup], *, now: float
) -> list[tuple[Verdict, Inspection]]:
    """One verdict for each group, and what was inspected. The noise of the groups' engines is recorded as of `now`.

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
    replayed = replay_groups(tools.scorer, work, run_dtype=tools.work.dtype, measured=tools.baselines.measured)
    replays = dict(zip(sound, replayed, strict=True))
    for i, replay in replays.items():
        tools.baselines.record(replay.pair, groups[i].author, replay.evidence, replay.reason, now=now)
    verdicts = []
    for i, (signed, body) in enumerate(zip(groups, bodies, strict=True)):
        done = replays.get(i)
        reason = faults[i] or (done.reason if done else "")
        verdict = Verdict(
            group=signed.digest,
            peer=signed.author,
            version=body.version,
            passed=not reason,
            reason=str(reason),
            tokens=done.tokens if done else 0,
            mismatched=done.mismatched if done else 0,
            worst_margin=_finite(done.worst_margin) if done else 0.0,
        )
        verdicts.append((verdict, inspections[i]))
    return verdicts


def _finite(margin: float) -> float:
    """A margin that a verdict can encode: a policy with logits that are not finite gives the largest."""
    return margin if math.isfinite(margin) else sys.float_info.max
