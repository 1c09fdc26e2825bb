"""Large groups at the learner: fetched if they would be stored, stored before they are acknowledged, bounded in bytes;
and the largest one from a spool over the wire into the journal."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from p2prl.client.delivery import Delivery
from p2prl.client.spool import Spool, SpoolConfig
from p2prl.learner.following.followed import Followed
from p2prl.learner.intake.admission import DecodedGroups
from p2prl.learner.intake.inbox import Inbox
from p2prl.learner.intake.intake import Intake
from p2prl.learner.intake.owners import Owners
from p2prl.learner.intake.peer_standings import PeerStandings
from p2prl.learner.intake.replay_backlog import BacklogConfig, ReplayBacklog
from p2prl.learner.intake.rollout_buffer import RolloutBuffer
from p2prl.learner.intake.slot_prices import SlotPrices
from p2prl.learner.intake.verdict_checks import VerdictIntake
from p2prl.learner.journal.groups import GroupState, StoredGroup
from p2prl.learner.learner_paths import LearnerPaths
from p2prl.learner.signing_sender import SigningSender
from p2prl.learner.storage import LearnerStorage
from p2prl.learner.timing.stages import InlineStage
from p2prl.net.process import control
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import body_of, envelope_digest, open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.ledger_messages import StorageReceipt
from p2prl.protocol.manifests import PolicyManifest, Sampling, blob_of
from p2prl.protocol.rollout_group import Completion, GroupHeader, RolloutGroup
from p2prl.protocol.signed_group import read_group, seal_group
from p2prl.protocol.wire_codec import encode
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.sim.simulated_port import SimulatedPort
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.sim.virtual_time import START
from p2prl.swarm import signals
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.testing.protocol_swarm import group_of
from p2prl_lab.testing.run_audit import _kept, record_everything

KEY, VOLUNTEER = identity_of("learner"), identity_of("volunteer")
SAMPLING = Sampling(1.0, limits.MAX_COMPLETION_TOKENS, limits.MAX_GROUP_SIZE)
MANIFEST = msgspec.structs.replace(run_manifest_of(KEY), sampling=SAMPLING)
MANIFEST_RAW = seal(KEY, MANIFEST, run=bytes(32), now=START)
RUN = envelope_digest(MANIFEST_RAW)
POLICY = seal(KEY, PolicyManifest(0, 0, blob_of(bytes(9), 4096), bytes(32), b"", bytes(32), 0), run=RUN, now=START)


class Clock:
    def now(self) -> float:
        return START


class ListPort:
    """A network port that returns an inbox and records what is sent."""

    addresses: tuple[str, ...] = ()
    status = None

    def __init__(self) -> None:
        self.inbox: list[control.FromNetwork] = []
        self.sent: list[control.ToNetwork] = []

    def send(self, message: control.ToNetwork) -> None:
        self.sent.append(message)

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        messages, self.inbox = self.inbox, []
        return messages

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass

    def receipts(self) -> list[bytes]:
        """Names in the storage receipts sent so far."""
        opened = [open_envelope(m.envelope, now=None) for m in self.sent if isinstance(m, signals.Publish)]
        return [n for each in opened if each.kind is Kind.STORAGE_RECEIPT for n in body_of(each, StorageReceipt).groups]

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.sent if isinstance(message, kind)]


class LearnerIntake:
    """A learner's intake with its journal, without a model."""

    def __init__(self, directory: Path, port: Any) -> None:
        self.storage = LearnerStorage(LearnerPaths(directory), MANIFEST)
        self.groups = self.storage.journal.groups
        with self.storage.journal.transaction():
            self.storage.journal.policies.add(0, 0, POLICY)
        sender = SigningSender(KEY, RUN, self.storage.journal, Clock())
        sender.attach(port)
        self.standings = PeerStandings(Clock())
        self.backlog = ReplayBacklog(
            BacklogConfig(batch_groups=9, surplus_share=0.0, newest_first=False), rank=self.standings.rank
        )
        self.intake = Intake(
            storage=self.storage,
            decoded=DecodedGroups(),
            buffer=RolloutBuffer(staleness_bound=8, ready_target=9),
            backlog=self.backlog,
            prices=SlotPrices(self.storage.journal, secret=bytes(32)),
            owners=Owners(self.storage.journal, Clock()),
            standings=self.standings,
            sender=sender,
            clock=Clock(),
            verdicts=VerdictIntake(self.storage.journal, sender, Clock()),
        )
        followed = Followed(self.storage, Clock(), InlineStage(), lambda _: None)
        self.inbox = Inbox(
            self.intake, self.storage.journal, sender, lambda _: None, lambda _: None, lambda _: None, followed
        )

    def read(self) -> None:
        self.inbox.read(0.0, step=0, finished=False)


@pytest.fixture
def port() -> ListPort:
    return ListPort()


@pytest.fixture
def learner(tmp_path: Path, port: ListPort) -> Iterator[LearnerIntake]:
    made = LearnerIntake(tmp_path / "run", port)
    yield made
    made.storage.close()


def group_with(slot: int, *, completions: int = 3, tokens: int = 30_000, **changes: object) -> RolloutGroup:
    one = random.Random(slot).randbytes(6 * tokens)
    rows = [Completion(one[: 4 * tokens], one[4 * tokens :], False, float(row)) for row in range(completions)]
    body = {"policy": envelope_digest(POLICY), "completions": tuple(rows), **changes}
    return msgspec.structs.replace(group_of(slot), **body)


def sealed(group: RolloutGroup, author: Identity = VOLUNTEER) -> tuple[bytes, bytes]:
    return seal_group(author, group, run=RUN, now=START)


def fetched(raw: bytes, body: bytes, folder: Path) -> control.GroupFetched:
    path = folder / envelope_digest(raw).hex()
    path.write_bytes(body)
    return control.GroupFetched(raw, str(path))


def test_a_header_is_fetched_then_stored_then_acknowledged(
    learner: LearnerIntake, port: ListPort, tmp_path: Path
) -> None:
    group = group_with(1)
    raw, body = sealed(group)
    name = envelope_digest(raw)
    port.inbox = [control.EnvelopeArrived(raw)]
    learner.read()
    assert port.sent == [signals.FetchGroup(name)]
    assert len(learner.backlog) == 0
    port.inbox = [fetched(raw, body, tmp_path)]
    learner.read()
    assert port.receipts() == [name]
    assert port.sent[-1] == signals.ReleaseGroup(name)
    (stored,) = learner.groups.in_state(GroupState.STORED, 9)
    assert read_group(stored.raw, stored.body).group == group
    assert len(learner.backlog) == 1
    port.inbox = [control.EnvelopeArrived(raw), fetched(raw, body, tmp_path)]
    learner.read()
    assert port.receipts() == [name] * 3, "announced again: acknowledged, not fetched"
    assert len(port.of(signals.FetchGroup)) == 1
    assert learner.groups.counts() == {"stored": 1}


def test_a_body_that_is_gone_is_fetched_again_when_it_is_announced(
    learner: LearnerIntake, port: ListPort, tmp_path: Path
) -> None:
    raw, _ = sealed(group_with(1))
    port.inbox = [control.GroupFetched(raw, str(tmp_path / "gone"))]
    learner.read()
    assert port.sent == []
    port.inbox = [control.EnvelopeArrived(raw)]
    learner.read()
    assert port.of(signals.FetchGroup)


def test_unknown_policies_and_malformed_bodies_are_not_fetched(
    learner: LearnerIntake, port: ListPort, tmp_path: Path
) -> None:
    alien, _ = sealed(group_with(1, policy=b"x" * 32))
    body = encode(group_with(2))
    header = GroupHeader(0, envelope_digest(POLICY), 3, blob_of(body, limits.GROUP_PART_BYTES))
    wrong = seal(VOLUNTEER, header, run=RUN, now=START)
    port.inbox = [control.EnvelopeArrived(alien), fetched(wrong, body, tmp_path)]
    learner.read()
    assert port.sent == [signals.ReleaseGroup(envelope_digest(wrong))]
    port.inbox = [control.EnvelopeArrived(wrong)]
    learner.read()
    assert not port.of(signals.FetchGroup), "its author would make the learner download it again and again"
    assert learner.intake.turned_away["unknown_policy"] == 1
    assert learner.groups.counts() == {}


def store(learner: LearnerIntake, author: bytes, slot: int, body: bytes) -> bytes:
    name = Digest(author[:16] + slot.to_bytes(16, "big"))
    with learner.storage.journal.transaction():
        learner.groups.store(StoredGroup(name, author, 0, slot, b"header", b"", b"", body), START)
    return name


def test_unchecked_bytes_are_bounded_for_one_author_and_for_all(
    learner: LearnerIntake, port: ListPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_UNCHECKED_BYTES_PER_PEER", 1_200_000)
    monkeypatch.setattr(limits, "MAX_UNCHECKED_BYTES", 3_000_000)
    raw, body = sealed(group_with(1))
    name = store(learner, VOLUNTEER.public_key, 0, bytes(1_200_001 - len(body)))
    port.inbox = [control.EnvelopeArrived(raw)]
    learner.read()
    assert not port.sent
    with learner.storage.journal.transaction():
        learner.groups.mark_refused(name, state=GroupState.REJECTED, reason="wrong_prompt")
    store(learner, VOLUNTEER.public_key, 1, bytes(1_200_000 - len(body)))
    port.inbox = [control.EnvelopeArrived(raw)]
    learner.read()
    assert len(port.of(signals.FetchGroup)) == 1, "within the limit"
    port.sent.clear()
    store(learner, b"o" * 32, 0, bytes(2_500_000))
    small, _ = sealed(group_with(5, completions=4, tokens=1), identity_of("small"))
    port.inbox = [control.EnvelopeArrived(raw), control.EnvelopeArrived(small)]
    learner.read()
    assert not port.sent, "keys are free: the sum over all is bounded too, small groups included"
    assert learner.intake.turned_away["too_many"] == 3


def test_small_groups_alone_are_bounded_in_bytes(learner: LearnerIntake, monkeypatch: pytest.MonkeyPatch) -> None:
    for slot in range(5):
        with learner.storage.journal.transaction():
            name = Digest(slot.to_bytes(32, "big"))
            learner.groups.store(StoredGroup(name, b"p" * 32, 0, slot, bytes(1_000), b"", b""), START)
    assert not learner.groups.unchecked_exceed(5 * limits.MAX_ENVELOPE_BYTES)
    assert not learner.groups.unchecked_exceed(5_000)
    assert learner.groups.unchecked_exceed(4_999)
    with learner.storage.journal.transaction():
        learner.groups.mark_refused(bytes(32), state=GroupState.EXPIRED, reason="")
    assert not learner.groups.unchecked_exceed(4_000)
    assert learner.groups.unchecked_exceed(3_999)
    store(learner, b"q" * 32, 9, bytes(1_000))
    assert learner.groups.unchecked_exceed(5_000), "header and body"
    assert not learner.groups.unchecked_exceed(5_000 + limits.MAX_ENVELOPE_BYTES)


def test_groups_that_wait_count_with_their_bodies(learner: LearnerIntake) -> None:
    for slot in range(5):
        store(learner, b"p" * 32, slot, bytes(1_000))
    sizes = [size for *_, size in learner.groups.waiting()]
    assert len(sizes) == 5
    assert all(size > 1_000 for size in sizes), "header and body"


def test_a_body_leaves_the_journal_with_its_envelope(learner: LearnerIntake) -> None:
    names = [store(learner, b"p" * 32, slot, bytes(1_000)) for slot in range(4)]
    journal = learner.storage.journal
    with journal.transaction():
        journal.groups.mark_refused(names[0], state=GroupState.REJECTED, reason="wrong_prompt")
        for name in names[1:]:
            journal.groups.mark_verified(name, behavior=b"1234", rewards=b"1234")
        journal.groups.mark_unused(names[1])
        journal.batches.begin(0, [names[2]])
    assert [len(group.body) for group in journal.groups.by_digest(names)] == [0, 0, 1_000, 1_000]
    assert [group.slot for group in journal.groups.in_state(GroupState.VERIFIED, 9)] == [3]
    with journal.transaction():
        journal.batches.forget_before(1)
    assert [len(group.body) for group in journal.groups.by_digest(names)] == [0, 0, 0, 1_000]
    (rows,) = journal._db.execute("SELECT COUNT(*) FROM group_bodies").fetchone()
    assert rows == 1


def test_an_audit_sees_bodies_that_the_learner_has_dropped(tmp_path: Path) -> None:
    record_everything(tmp_path)
    learner = LearnerIntake(tmp_path, ListPort())
    groups = [group_with(slot) for slot in range(2)]
    names = []
    journal = learner.storage.journal
    for group in groups:
        raw, body = sealed(group)
        learner.intake.receive_body(raw, body)
        names.append(envelope_digest(raw))
    with journal.transaction():
        for step, name in enumerate(names):
            journal.groups.mark_verified(name, behavior=b"1234", rewards=b"5678")
            journal.batches.begin(step, [name])
        journal.batches.forget_before(1)
    assert [len(group.body) > 0 for group in journal.groups.by_digest(names)] == [False, True]
    learner.storage.close()
    assert _kept(tmp_path) == {name: (group, b"1234", b"5678") for name, group in zip(names, groups, strict=True)}


def test_the_cache_of_decoded_groups_is_bounded_in_bytes() -> None:
    decoded, kept = DecodedGroups(), []
    for slot in range(7):
        raw, body = sealed(group_with(slot, completions=64, tokens=32_768 if slot == 0 else 30_000))
        kept.append(StoredGroup(envelope_digest(raw), VOLUNTEER.public_key, 0, slot, raw, b"", b"", body))
        decoded.keep(read_group(raw, body))
        assert decoded._bytes <= 64 * 1024 * 1024
    assert len(decoded._kept) == 5
    assert decoded.take(kept[0]).slot == 0, "decoded again from its row"
    assert decoded.take(kept[6]).slot == 6


def test_the_largest_group_from_spool_to_journal(tmp_path: Path) -> None:
    """64 completions of 32,768 tokens: stored by a volunteer, announced, fetched part by part, journaled, decoded."""
    network = VirtualNetwork(3)
    ports: dict[str, SimulatedPort] = {}
    for identity, role in ((KEY, Role.LEARNER), (VOLUNTEER, Role.VOLUNTEER)):
        store_dir = DiskBlobStore(tmp_path / role.name)
        peer = identity.peer_id
        ports[role.name] = port = SimulatedPort(network, peer, (network.address(peer),), store_dir.path)

        def make(
            now: float, rng: random.Random, identity: Identity = identity, role: Role = role, disk: Any = store_dir
        ) -> Node:
            node = Node(identity, RUN, disk, rng, NodeConfig(role=role), now)
            node.begin(MANIFEST_RAW)
            return node

        network.host(peer, RUN, make, port.on_event)
    network.connect(VOLUNTEER.peer_id, KEY.peer_id)
    network.run_for(10.0)

    learner = LearnerIntake(tmp_path / "run", ports["LEARNER"])
    spool = Spool(tmp_path / "spool.db", SpoolConfig())
    delivery = Delivery(spool, author=VOLUNTEER.public_key, run=RUN, redeliver_s=5.0, on_judged=lambda *_: None)
    delivery.set_links({"learner": 1})
    group = group_with(1, completions=limits.MAX_GROUP_SIZE, tokens=limits.MAX_COMPLETION_TOKENS)
    raw, body = sealed(group)
    name = envelope_digest(raw)
    assert 12_500_000 < len(body) <= limits.MAX_GROUP_BYTES
    spool.add(name, raw, version=0, slot=1, tokens=64 * 32_768, reward=0.0, now=network.now, body=body)
    volunteer = ports["VOLUNTEER"]
    for _ in range(60):  # a volunteer that starts with this spool: the header first, the body when it is asked for
        for message in delivery.due(network.now + 60.0, run_known=True):
            volunteer.send(message)
        network.run_for(1.0)
        learner.read()
        for arrived in volunteer.poll(0.0):
            if isinstance(arrived, signals.GroupBodyWanted):
                for answer in delivery.on_body_wanted(arrived.digest):
                    volunteer.send(answer)
            elif isinstance(arrived, control.EnvelopeArrived):
                opened = open_envelope(arrived.envelope, now=None)
                if opened.kind is Kind.STORAGE_RECEIPT:
                    delivery.on_storage_receipt(body_of(opened, StorageReceipt))
    (stored,) = learner.groups.in_state(GroupState.STORED, 9)
    assert stored.digest == name
    assert DecodedGroups().take(stored) == group
    assert spool.counts() == {"delivered": 1}
    assert spool.body(name) == b""
    assert network.counters.bulk_bytes < len(body) + 97 * (5 + 37 + 7 * 32) + 1, "each part once, with its proof"
    learner.storage.close()
    spool.close()
