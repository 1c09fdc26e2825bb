"""A validator on a small run: messages go in, its verdicts come out."""

from __future__ import annotations

from typing import Any

from p2prl.models.groups.group_work import ReplayTools
from p2prl.net.process import control
from p2prl.net.process.run_preparation import RunPreparation
from p2prl.protocol.envelope import body_of, open_envelope, seal
from p2prl.protocol.ledger_messages import Verdict
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.protocol.wire_codec import encode
from p2prl.swarm import signals
from p2prl.swarm.policies.catalog import PolicyVersion
from p2prl.validator.service import Audit, Validator, ValidatorConfig
from tests.unit.learner.small_run import NOW, SmallRun, identity

ME, PEER = identity("validator"), identity("volunteer")


class InboxPort:
    """A network port that returns its inbox and then stops the validator."""

    addresses: tuple[str, ...] = ()
    status = None

    def __init__(self, inbox: list[control.FromNetwork]) -> None:
        self.inbox = inbox
        self.verdicts: list[Verdict] = []
        self.published: list[bytes] = []
        self.fetched: list[bytes] = []
        self.groups: list[control.ToNetwork] = []
        self.left = 6
        self.stop: Any = None

    def send(self, message: control.ToNetwork) -> None:
        if isinstance(message, signals.Publish):
            self.published.append(message.envelope)
            self.verdicts.append(body_of(open_envelope(message.envelope, now=None), Verdict))
        elif isinstance(message, signals.FetchPolicy):
            self.fetched.append(message.digest)
        elif isinstance(message, (signals.FetchGroup, signals.ReleaseGroup)):
            self.groups.append(message)

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        messages, self.inbox = self.inbox, []
        self.left -= 1
        if not self.left:
            self.stop()
        return messages

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass


class HandClock:
    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> float:
        self.time += 1.0
        return self.time


def audit(
    world: SmallRun, messages: list[control.FromNetwork], *, turns: int = 6, rate: float = 1.0
) -> tuple[InboxPort, Audit, list[str]]:
    start: list[control.FromNetwork] = [control.RunKnown(world.manifest_raw)]
    start += [control.FileReady(file.name, "/nowhere") for file in world.manifest.files]
    port, audits, notices = InboxPort([*start, *messages]), list[Audit](), list[str]()
    port.left = turns
    validator = Validator(
        identity=ME,
        run=world.run,
        config=ValidatorConfig(rate=rate),
        clock=HandClock(),
        preparation=RunPreparation(lambda _, __: ReplayTools(world.scorer, world.work), lambda _, __: None),
        on_audit=audits.append,
        on_notice=notices.append,
    )
    port.stop = validator.stop
    validator.run(port)
    return port, audits[-1], notices


def ready(world: SmallRun, policy: PolicyVersion) -> control.VersionReady:
    return control.VersionReady(
        policy.digest, encode(policy.manifest), str(world.blobs.path(policy.manifest.weights.root))
    )


def arrived(world: SmallRun, group: RolloutGroup) -> control.EnvelopeArrived:
    return control.EnvelopeArrived(seal(PEER, group, run=world.run, now=NOW))
