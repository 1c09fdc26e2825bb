"""A volunteer of a small run, with a network port and a clock that the test controls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from p2prl.client.next_action import AgentConfig
from p2prl.client.progress import Progress
from p2prl.client.refused_work import ReplayRefused
from p2prl.client.service import Volunteer, VolunteerConfig
from p2prl.models.groups.group_work import SamplingTools
from p2prl.net.process import control
from p2prl.net.process.run_preparation import RunPreparation
from p2prl.protocol import ledger_chain
from p2prl.protocol.envelope import body_of, envelope_digest, open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.ledger_messages import Receipt, ReceiptState
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.protocol.wire_codec import encode
from p2prl.swarm import signals
from tests.unit.learner.small_run import NOW, SmallRun, identity

ME = identity("volunteer")
STATUS = control.Status((("learner", 1),), 0, 0, 0, 0, (-1, 0, 0), 0, 0)


class InboxPort:
    """A network port that returns the messages a test puts into its inbox."""

    addresses: tuple[str, ...] = ()
    status: control.Status | None = None

    def __init__(self) -> None:
        self.inbox: list[control.FromNetwork] = []
        self.published: list[bytes] = []
        self.asked: list[int] = []
        self.excluded: list[bytes] = []
        """Groups that a test has rejected."""

    def send(self, message: control.ToNetwork) -> None:
        if isinstance(message, signals.Publish):
            self.published.append(message.envelope)
        elif isinstance(message, signals.AskLedger):
            self.asked.append(message.from_height)

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        messages, self.inbox = self.inbox, []
        return messages

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass


class HandClock:
    def __init__(self) -> None:
        self.time = NOW
        self.step = 0.001

    def now(self) -> float:
        self.time += self.step
        return self.time


class VolunteerRig:
    """A volunteer of a small run, its network and its clock."""

    def __init__(self, directory: Path, *, task: str = "chain4", created: float = NOW + 3_600.0) -> None:
        # On a clock behind the run's start slots begin with 0.
        self.small_run = SmallRun(directory / "learner", task=task, created=created)
        self.spool = directory / "seat" / "spool.db"
        self.clock = HandClock()
        self.notices: list[str] = []
        self.progress: list[Progress] = []
        self.replay: ReplayRefused | None = None
        """How it checks refused groups at its next start."""
        self.start()

    def start(self, *, background: bool = False, stands_by: bool = False) -> None:
        self.port = InboxPort()
        self.volunteer = Volunteer(
            identity=ME,
            run=self.small_run.run,
            spool_path=self.spool,
            config=VolunteerConfig(agent=AgentConfig(slots_in_flight=2), background=background, stands_by=stands_by),
            clock=self.clock,
            preparation=RunPreparation(
                lambda _, __: SamplingTools(self.small_run.sampler, self.small_run.work), lambda _, __: None
            ),
            on_progress=self.progress.append,
            on_notice=self.notices.append,
            replay=self.replay,
        )
        self.volunteer.attach(self.port)

    def close(self) -> None:
        self.volunteer.close()
        self.small_run.close()

    def introduce(self) -> None:
        """The run, its files, and a learner in reach."""
        self.port.inbox.append(control.RunKnown(self.small_run.manifest_raw))
        self.port.inbox += [control.FileReady(file.name, "/nowhere") for file in self.small_run.manifest.files]
        self.port.inbox.append(STATUS)

    def offer(self, version: int) -> None:
        """Weights of a version are on disk."""
        policy = self.small_run.publish(version, step=version)
        path = str(self.small_run.blobs.path(policy.manifest.weights.root))
        self.port.inbox.append(control.VersionReady(policy.digest, encode(policy.manifest), path))

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.clock.time += 0.25  # longer than the pause between two reports
            self.volunteer.turn(wait_s=0.0)

    def groups(self) -> list[RolloutGroup]:
        """Groups published so far."""
        return [body_of(open_envelope(raw, now=None), RolloutGroup) for raw in self.port.published]

    def says(self, body: Any, author: Identity | None = None) -> bytes:
        return seal(author or self.small_run.learner, body, run=self.small_run.run, now=NOW)


def settled(raw: bytes, state: ReceiptState = ReceiptState.VERIFIED, reason: str = "") -> Receipt:
    group = body_of(open_envelope(raw, now=None), RolloutGroup)
    return Receipt(envelope_digest(raw), ME.public_key, group.version, group.slot, int(state), reason, 9, 2, 0.5)


def chain(*envelopes: bytes) -> tuple[bytes, ...]:
    entries, head = [], ledger_chain.GENESIS
    for height, envelope in enumerate(envelopes):
        raw, head = ledger_chain.append(height, head, envelope)
        entries.append(raw)
    return tuple(entries)
