"""Dishonest validators, for simulations and for tests over sockets: each replaces the judge of an honest one.

A validator's judge makes its verdicts. To test another attack, write a judge and add it to `DISHONEST_JUDGES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import msgspec
import numpy as np

from p2prl.models.groups.group_work import Inspection, ReplayTools
from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort
from p2prl.net.process.passing_port import PassingPort
from p2prl.protocol.envelope import open_envelope
from p2prl.protocol.ledger_messages import Verdict
from p2prl.protocol.manifests import PolicyManifest
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.signed_group import SignedGroup
from p2prl.protocol.verdict_probes import probe_places
from p2prl.validator.verdicts import Judge

Verdicts = list[tuple[Verdict, Inspection]]


class LazyJudge:
    """Says that every group passes, and replays nothing. Its probes are plausible log-probs."""

    def __init__(self, honest: Judge) -> None:
        del honest

    def __call__(
        self, tools: ReplayTools, manifest: PolicyManifest, groups: Sequence[SignedGroup], *, validator: bytes
    ) -> Verdicts:
        """See `Judge`."""
        return [self._verdict(tools, manifest, signed, validator) for signed in groups]

    def _verdict(
        self, tools: ReplayTools, manifest: PolicyManifest, signed: SignedGroup, validator: bytes
    ) -> tuple[Verdict, Inspection]:
        group = signed.group
        seen = tools.work.inspect(group, peer=signed.author, beacon=manifest.beacon)
        claimed = np.concatenate([np.frombuffer(each.logprobs, dtype="<f2") for each in group.completions])
        rng = np.random.default_rng(list(signed.digest))
        probes = rng.choice(claimed, len(probe_places(validator, signed.digest, len(group.completions))))
        tokens = sum(len(each.tokens) // 4 for each in group.completions)
        proof = probes.astype("<f2").tobytes()
        return Verdict(signed.digest, signed.author, group.version, True, "", tokens, 0, 0.0, proof), seen


class LyingJudge:
    """Replays every group, proves it, and states the opposite of what it saw."""

    def __init__(self, honest: Judge) -> None:
        self._honest = honest

    def __call__(
        self, tools: ReplayTools, manifest: PolicyManifest, groups: Sequence[SignedGroup], *, validator: bytes
    ) -> Verdicts:
        """See `Judge`."""
        judged = self._honest(tools, manifest, groups, validator=validator)
        return [(_opposite(verdict), seen) for verdict, seen in judged]


class CopyingJudge:
    """Signs the verdicts that others have published on the same groups; it must `hear` them. Where it has heard none,
    it is lazy."""

    def __init__(self, honest: Judge) -> None:
        self._lazy = LazyJudge(honest)
        self._heard: dict[bytes, Verdict] = {}

    def hear(self, message: control.FromNetwork) -> None:
        """Take note of another validator's verdict."""
        if isinstance(message, control.EnvelopeArrived):
            body = open_envelope(message.envelope, now=None).body
            if isinstance(body, Verdict):
                self._heard[body.group] = body

    def __call__(
        self, tools: ReplayTools, manifest: PolicyManifest, groups: Sequence[SignedGroup], *, validator: bytes
    ) -> Verdicts:
        """See `Judge`."""
        made = self._lazy(tools, manifest, groups, validator=validator)
        return [(self._heard.get(verdict.group, verdict), seen) for verdict, seen in made]


class HearingPort(PassingPort):
    """A network port that lets a judge hear every message that arrives."""

    def __init__(self, port: NetworkPort, hear: Callable[[control.FromNetwork], None]) -> None:
        super().__init__(port)
        self._hear = hear

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        """See `NetworkPort`."""
        messages = super().poll(timeout_s)
        for message in messages:
            self._hear(message)
        return messages


def _opposite(verdict: Verdict) -> Verdict:
    reason = str(RejectionReason.SEED_MISMATCH) if verdict.passed else ""
    return msgspec.structs.replace(verdict, passed=not verdict.passed, reason=reason)


DISHONEST_JUDGES: Mapping[str, Callable[[Judge], Judge]] = MappingProxyType(
    {"lazy": LazyJudge, "lying": LyingJudge, "copying": CopyingJudge}
)
"""Name → judge made from the honest one."""
