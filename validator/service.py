"""The validator as it runs: samples strangers' groups, replays them at their declared version, signs verdicts.

It trusts neither volunteers nor the learner's receipts: prompts, tokens and rewards are recomputed from the slot, and
the weights are those of the policy manifest the group names.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from p2prl.clock import Clock
from p2prl.errors import IntegrityError
from p2prl.models.engine_port import Engine
from p2prl.models.group_replay import replay_groups
from p2prl.models.group_work import Prepared
from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort
from p2prl.net.process.run_bootstrap import FindBase, OnManifest, Prepare, RunBootstrap
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, body_of, open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import LedgerHead, Verdict
from p2prl.protocol.manifests import PolicyManifest
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.protocol.run_end import RunEnd
from p2prl.protocol.wire_codec import decode
from p2prl.validator.audit_sampling import is_selected
from p2prl.validator.replay_queue import ReplayQueue

_BATCH = 16
"""Groups replayed at once; messages are answered between batches."""

_PATIENCE_S = 30.0
"""How long groups wait for the weights of their policy before they are let go."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidatorConfig:
    """How much a validator checks."""

    rate: float = 0.25
    """Share of groups replayed, 0..1."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What a validator has done so far."""

    seen: int
    replayed: int
    passed: int
    failed: int
    waiting: int
    version: int


class Validator:
    """One validator of one run."""

    def __init__(
        self,
        *,
        identity: Identity,
        run: Digest,
        config: ValidatorConfig,
        clock: Clock,
        prepare: Prepare[Prepared],
        on_manifest: OnManifest,
        on_audit: Callable[[Audit], None],
        on_notice: Callable[[str], None],
        find_base: FindBase | None = None,
    ) -> None:
        self._identity = identity
        self._run = run
        self._config = config
        self._clock = clock
        self._arrival = RunBootstrap(prepare, on_manifest, find_base)
        self._on_audit = on_audit
        self._on_notice = on_notice
        self._docket = ReplayQueue()
        self._policies: dict[Digest, tuple[PolicyManifest, Path]] = {}
        self._asked: dict[Digest, float] = {}
        self._loaded: Digest | None = None
        self._seen = self._replayed = self._passed = 0
        self._stopping = False
        self._farewell = RunEnd()

    def stop(self) -> None:
        """Return from `run` after the batch under way."""
        self._stopping = True

    def run(self, network: NetworkPort) -> bool:
        """Validate until told to stop. Returns True when the learner ended the run and nothing waits."""
        started = self._clock.now()
        try:
            while not self._stopping and not (self._is_over() and not len(self._docket)):
                self._arrival.check_patience(self._clock.now() - started)
                worked = self._replay(network)
                for message in network.poll(0.0 if worked else 0.3):
                    self._receive(message)
                self._arrival.offer_base(network)
                newest = max((m.version for m, _ in self._policies.values()), default=-1)
                failed = self._replayed - self._passed
                self._on_audit(Audit(self._seen, self._replayed, self._passed, failed, len(self._docket), newest))
            return self._is_over()
        finally:
            network.close()

    def _is_over(self) -> bool:
        return self._farewell.is_over(self._clock.now())

    def _receive(self, message: control.FromNetwork) -> None:
        match message:
            case control.RunKnown() | control.FileReady():
                self._arrival.take(message)
            case control.VersionReady(digest=digest, manifest=raw, path=path):
                manifest = decode(raw, PolicyManifest, limit_bytes=limits.MAX_ENVELOPE_BYTES)
                self._policies[Digest(digest)] = (manifest, Path(path))
                self._farewell.on_policy(manifest.step)
            case control.VersionAnnounced(step=step):
                self._farewell.on_policy(step)
            case control.EnvelopeArrived(envelope=raw):
                self._on_envelope(open_envelope(raw, now=None))
            case control.Warned(message=text, remedy=remedy):
                self._on_notice(f"{text}. {remedy}".strip())
            case _:
                pass

    def _on_envelope(self, opened: Opened) -> None:
        if opened.kind is Kind.ROLLOUT_GROUP:
            self._seen += 1
            if is_selected(opened.digest, self._identity.secret_seed, self._config.rate):
                self._docket.add(opened, Digest(body_of(opened, RolloutGroup).policy))
        elif opened.kind is Kind.LEDGER_HEAD:
            self._farewell.on_head(body_of(opened, LedgerHead), opened.sent_ms, now=self._clock.now())

    def _replay(self, network: NetworkPort) -> bool:
        """Replay one batch of one policy that is here; ask for the policies that are not. Whether it did anything."""
        prepared = self._arrival.prepared
        if prepared is None:
            return False
        now = self._clock.now()
        for policy in self._docket.policies():
            if policy in self._policies and self._load(prepared.engine, policy):
                groups = self._docket.take(policy, _BATCH)
                for opened, verdict in zip(groups, self._judge(prepared, policy, groups), strict=True):
                    self._replayed += 1
                    self._passed += verdict.passed
                    if not verdict.passed:
                        self._on_notice(f"group {opened.digest.hex()[:8]} failed its replay: {verdict.reason}")
                    raw = seal(self._identity, verdict, run=self._run, now=self._clock.now())
                    network.send(control.Publish(raw))
                return True
            if policy not in self._asked:
                self._asked[policy] = now
                network.send(control.FetchPolicy(policy))
            elif now - self._asked[policy] > _PATIENCE_S or self._is_over():
                self._docket.drop(policy)
                del self._asked[policy]
        return False

    def _load(self, engine: Engine, policy: Digest) -> bool:
        if self._loaded != policy:
            self._loaded = None  # whatever happens, the engine may hold the one before no more
            try:
                engine.load_weights(self._policies[policy][1].read_bytes())
            except FileNotFoundError:
                del self._policies[policy]
                return False
            except IntegrityError as error:
                self._on_notice(f"version {self._policies[policy][0].version} cannot be used: {error}")
                self._docket.drop(policy)
                return False
            self._loaded = policy
        return True

    def _judge(self, prepared: Prepared, policy: Digest, groups: list[Opened]) -> list[Verdict]:
        manifest = self._policies[policy][0]
        bodies = [body_of(opened, RolloutGroup) for opened in groups]
        inspections = [
            prepared.work.inspect(body, peer=opened.author, beacon=manifest.beacon)
            for opened, body in zip(groups, bodies, strict=True)
        ]
        # A group must name the version its policy has, or it would be credited to another one.
        faults = [
            inspection.reason if body.version == manifest.version else RejectionReason.UNKNOWN_POLICY
            for body, inspection in zip(bodies, inspections, strict=True)
        ]
        sound = [i for i, fault in enumerate(faults) if not fault]
        replays = dict(
            zip(sound, replay_groups(prepared.engine, [(bodies[i], inspections[i]) for i in sound]), strict=True)
        )
        verdicts = []
        for i, (opened, body) in enumerate(zip(groups, bodies, strict=True)):
            replay = replays.get(i)
            reason = faults[i] or (replay.reason if replay else "")
            verdicts.append(
                Verdict(
                    group=opened.digest,
                    peer=opened.author,
                    version=body.version,
                    passed=not reason,
                    reason=str(reason),
                    tokens=replay.tokens if replay else 0,
                    mismatched=replay.mismatched if replay else 0,
                    worst_margin=_finite(replay.worst_margin) if replay else 0.0,
                )
            )
        return verdicts


def _finite(margin: float) -> float:
    """A margin as a verdict may say it: a policy whose logits are not numbers gives the largest."""
    return margin if math.isfinite(margin) else sys.float_info.max
