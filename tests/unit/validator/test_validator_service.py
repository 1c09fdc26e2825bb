"""The validator: the share it audits, its replay queue, and verdicts that name the fault."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import ConfigError, IntegrityError, MachineError
from p2prl.models.groups.group_work import GroupWork
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.net.process import control
from p2prl.protocol.digests import Digest, digest
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.ledger_messages import (
    LedgerHead,
    Receipt,
    Receipts,
    ReceiptState,
)
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.protocol.signed_group import SignedGroup, read_group, seal_group
from p2prl.swarm import signals
from p2prl.swarm.policies.catalog import PolicyVersion
from p2prl.tasks.data.packed_data import DataSplit, PackedRows, TaskData
from p2prl.validator.replay_queue import ReplayQueue, is_selected
from p2prl_lab.testing.protocol_swarm import group_of
from tests.unit.learner.small_run import NOW, SmallRun, altered, with_completion
from tests.unit.models.data_run import SUMS, DataRun, pack
from tests.unit.validator.validator_run import PEER, arrived, audit, ready


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.floats(0, 1))
def test_a_choice_never_changes_and_grows_with_the_rate(group: bytes, secret: bytes, rate: float) -> None:
    name = digest("g", group)
    chosen = is_selected(name, secret, rate)
    assert is_selected(name, secret, rate) is chosen
    assert not is_selected(name, secret, 0.0)
    assert is_selected(name, secret, 1.0)
    if chosen:
        assert is_selected(name, secret, min(1.0, rate + 0.1))


def test_the_selected_share_is_the_rate_and_differs_by_key() -> None:
    names = [digest("g", n.to_bytes(4, "big")) for n in range(4000)]
    mine, yours = ([is_selected(n, secret, 0.25) for n in names] for secret in (b"a" * 32, b"b" * 32))
    for chosen in (mine, yours):
        assert sum(chosen) == pytest.approx(1000, abs=5 * (4000 * 0.25 * 0.75) ** 0.5)
    both = sum(a and b for a, b in zip(mine, yours, strict=True))
    assert both == pytest.approx(250, abs=5 * (4000 / 16) ** 0.5)


def test_the_replay_queue_drops_the_oldest() -> None:
    policies = [digest("p", bytes([n % 2])) for n in range(6)]
    groups = [signed(n, policies[n]) for n in range(6)]
    queue = ReplayQueue(max_groups=4)
    for group in groups:
        queue.add(group)
        queue.add(group)
    assert len(queue) == 4
    assert queue.policies() == [policies[2], policies[3]]
    assert queue.take(policies[2], 1) == [groups[2]]
    assert queue.take(policies[2], 9) == [groups[4]]
    queue.drop(policies[3])
    assert queue.policies() == []


def test_the_replay_queue_is_bounded_in_bytes() -> None:
    groups = [signed(n, bytes(32)) for n in range(5)]
    queue = ReplayQueue(max_bytes=3 * groups[0].size_bytes)
    for group in groups:
        queue.add(group)
    assert queue.take(Digest(bytes(32)), 9) == groups[2:]
    for group in groups[:3]:  # what was taken no longer counts
        queue.add(group)
    assert len(queue) == 3


def signed(slot: int, policy: bytes) -> SignedGroup:
    return read_group(seal(PEER, group_of(slot, policy=policy), run=bytes(32), now=NOW))


def test_verdicts_name_the_fault_of_a_group(world: SmallRun) -> None:
    policy = world.publish(0, step=0)
    honest = [world.group(policy, PEER, slot) for slot in range(5)]
    ids = np.frombuffer(honest[1].completions[0].tokens, dtype="<u4").copy()
    ids[0] = (ids[0] + 1) % 10
    groups = [
        honest[0],
        with_completion(honest[1], 0, tokens=ids.tobytes()),
        altered(honest[2], prompt=honest[3].prompt),
        altered(honest[3], version=4),
        with_completion(honest[4], 0, logprobs=bytes(len(honest[4].completions[0].logprobs))),
    ]
    port, totals, notices = audit(world, [ready(world, policy), *(arrived(world, group) for group in groups)])
    reasons = ["", "seed_mismatch", "wrong_prompt", "unknown_policy", "logprob_mismatch"]
    assert [v.reason for v in port.verdicts] == reasons
    assert [v.passed for v in port.verdicts] == [not reason for reason in reasons]
    assert port.verdicts[0].tokens == sum(len(c.tokens) // 4 for c in honest[0].completions)
    assert (totals.seen, totals.replayed, totals.passed, totals.failed) == (5, 5, 1, 4)
    assert len(notices) == 4


def test_a_large_group_is_fetched_then_judged_under_its_headers_name(world: SmallRun, tmp_path: Path) -> None:
    policy = world.publish(0, step=0)
    honest = world.group(policy, PEER, 0)
    long = msgspec.structs.replace(honest.completions[0], tokens=bytes(4 * 30_000), logprobs=bytes(2 * 30_000))
    raw, body = seal_group(PEER, altered(honest, completions=(long, long)), run=world.run, now=NOW)
    other, _ = seal_group(PEER, altered(honest, slot=1, completions=(long, long)), run=world.run, now=NOW)
    path = tmp_path / "body"
    path.write_bytes(body)
    messages: list[control.FromNetwork] = [
        ready(world, policy),
        control.EnvelopeArrived(raw),
        control.GroupFetched(raw, str(path)),
        control.GroupFetched(other, str(path)),  # not the body it names
        control.GroupFetched(other, str(tmp_path / "gone")),
    ]
    port, totals, _ = audit(world, messages)
    names = [envelope_digest(envelope) for envelope in (raw, other)]
    assert port.groups == [signals.FetchGroup(names[0]), *map(signals.ReleaseGroup, (names[0], names[1], names[1]))]
    assert [(verdict.group, verdict.reason) for verdict in port.verdicts] == [(names[0], "bad_tokens")]
    assert (totals.seen, totals.replayed) == (1, 1)


def test_missing_weights_are_asked_for_once_and_waited_for_30_s(world: SmallRun) -> None:
    policy = world.publish(0, step=0)
    group = world.group(policy, PEER, 0)
    port, totals, _ = audit(world, [arrived(world, group)], turns=6)
    assert port.fetched == [policy.digest]
    assert (totals.waiting, totals.replayed) == (1, 0)
    port, totals, _ = audit(world, [arrived(world, group)], turns=40)
    assert totals.waiting == 0
    assert port.verdicts == []


def test_damaged_weights_give_no_verdict(world: SmallRun) -> None:
    policy = world.publish(0, step=0)
    group = world.group(policy, PEER, 0)
    path = world.blobs.path(policy.manifest.weights.root)
    path.write_bytes(path.read_bytes()[:-4])
    port, totals, notices = audit(world, [ready(world, policy), arrived(world, group)])
    assert port.verdicts == []
    assert totals.waiting == 0
    assert len(notices) == 1
    assert "version 0 cannot be used" in notices[0]


def test_leaves_when_the_learner_ends_the_run(world: SmallRun) -> None:
    head = seal(world.learner, LedgerHead(0, bytes(32), 0, True), run=world.run, now=NOW)
    _, totals, _ = audit(world, [control.EnvelopeArrived(head)], turns=1000)
    assert totals.waiting == 0
    assert msgspec.structs.asdict(LedgerHead(0, bytes(32), 0, True))["finished"]


def test_an_outdated_run_end_is_ignored(world: SmallRun) -> None:
    old = seal(world.learner, LedgerHead(0, bytes(32), 0, True), run=world.run, now=NOW)
    newer = seal(world.learner, LedgerHead(1, bytes(32), 1, False), run=world.run, now=NOW + 1)
    policy = world.publish(0, step=0)
    group = world.group(policy, PEER, 0)
    messages: list[control.FromNetwork] = [control.EnvelopeArrived(newer), control.EnvelopeArrived(old)]
    messages += [ready(world, policy), arrived(world, group)]
    port, _, _ = audit(world, messages, turns=6)
    assert port.left == 0, "it stayed until it was told to stop"


def test_rewards_of_replayed_groups_are_compared_with_receipts(world: SmallRun) -> None:
    """The learner's receipts give one group's true reward and another's false one; a third has none."""
    policy = world.publish(0, step=0)
    groups = [world.group(policy, PEER, slot) for slot in range(3)]
    envelopes = [seal(PEER, group, run=world.run, now=NOW) for group in groups]
    means = [sum(c.reward for c in group.completions) / len(group.completions) for group in groups]
    receipts = [
        Receipt(envelope_digest(raw), PEER.public_key, 0, slot, int(ReceiptState.VERIFIED), "", 1, 2, reward)
        for slot, (raw, reward) in enumerate(zip(envelopes[:2], (means[0], means[1] + 0.5), strict=True))
    ]
    signed_receipts = seal(world.learner, Receipts(1, tuple(receipts)), run=world.run, now=NOW)
    messages: list[control.FromNetwork] = [
        ready(world, policy),
        *(control.EnvelopeArrived(raw) for raw in envelopes),
        control.EnvelopeArrived(signed_receipts),
    ]
    port, totals, notices = audit(world, messages)
    assert [verdict.passed for verdict in port.verdicts] == [True] * 3, "a verdict is about tokens"
    assert (totals.rewards_agreed, totals.rewards_disputed) == (1, 1)
    (notice,) = notices
    assert "another reward" in notice


def test_a_validator_scores_data_of_groups_that_passed(world: SmallRun) -> None:
    policy = world.publish(0, step=0)
    run = DataRun(world)
    slots = [
        slot
        for slot in range(8)
        if run.learner.assign(beacon=policy.manifest.beacon, peer=PEER.public_key, slot=slot).row is not None
    ]
    world.work = run.learner
    honest = [world.group(policy, PEER, slot) for slot in slots[:2]]
    forged = altered(honest[1], prompt=honest[0].prompt)
    port, totals, _ = audit(world, [ready(world, policy), arrived(world, honest[0]), arrived(world, forged)])
    assert [verdict.passed for verdict in port.verdicts] == [True, False]
    assert [(task, account) for task, _, account in run.scorer.calls] == [("sums", PEER.public_key)]
    assert run.scorer.closed, "its processes end with it"
    world.work = run.volunteer  # as without --run-scorer
    port, totals, _ = audit(world, [ready(world, policy), arrived(world, honest[0])])
    assert [verdict.passed for verdict in port.verdicts] == [True]
    assert (totals.rewards_agreed, totals.rewards_disputed) == (0, 0)


def data_groups(world: SmallRun, run: DataRun, policy: PolicyVersion, count: int) -> list[RolloutGroup]:
    """Honest groups of rows of data."""
    world.work = run.learner
    groups = [world.group(policy, PEER, slot) for slot in range(12)]
    return [group for group in groups if group.task == "sums"][:count]


@pytest.mark.parametrize("error", [ConfigError("it fails"), MachineError("no room"), IntegrityError("damaged")])
def test_a_validator_that_cannot_score_goes_on_replaying(world: SmallRun, error: Exception) -> None:
    policy = world.publish(0, step=0)
    run = DataRun(world)
    groups = data_groups(world, run, policy, 2)
    run.scorer.error = error
    port, totals, notices = audit(world, [ready(world, policy), *(arrived(world, group) for group in groups)])
    assert [verdict.passed for verdict in port.verdicts] == [True, True]
    assert (totals.rewards_agreed, totals.rewards_disputed, totals.rewards_unclear) == (0, 0, 0)
    (notice,) = notices
    assert "only tokens" in notice
    assert str(error) in notice


def test_a_hostile_row_is_told_once_and_stops_no_validator(world: SmallRun, tmp_path: Path) -> None:
    """Two batches of two policies: after the first failure nothing more is scored."""
    policies = [world.publish(version, step=version) for version in (0, 1)]
    run = DataRun(world)
    groups = [group for policy in policies for group in data_groups(world, run, policy, 1)]
    nested = b'{"answer":' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    rows = PackedRows(pack(tmp_path / "nested", [nested] * len(SUMS)))
    data = run.learner._data["sums"]
    hostile = TaskData(DataSplit(data.training.prompts, rows), data.held_out)
    world.work = GroupWork(run.manifest, world.run, run.codec, {"sums": hostile}, run.scorer)
    messages: list[control.FromNetwork] = [ready(world, policy) for policy in policies]
    port, _, notices = audit(world, [*messages, *(arrived(world, group) for group in groups)])
    assert [verdict.passed for verdict in port.verdicts] == [True, True]
    (notice,) = notices
    assert "not JSON" in notice
    assert run.scorer.calls == []


def test_answers_that_timed_out_here_dispute_nothing(world: SmallRun) -> None:
    policy = world.publish(0, step=0)
    run = DataRun(world)
    (group,) = data_groups(world, run, policy, 1)
    run.scorer.broken = "timeout"
    raw = seal(PEER, group, run=world.run, now=NOW)
    paid = Receipt(envelope_digest(raw), PEER.public_key, 0, group.slot, int(ReceiptState.VERIFIED), "", 1, 2, 1.0)
    messages: list[control.FromNetwork] = [ready(world, policy), control.EnvelopeArrived(raw)]
    messages.append(control.EnvelopeArrived(seal(world.learner, Receipts(1, (paid,)), run=world.run, now=NOW)))
    _, totals, notices = audit(world, messages)
    assert (totals.rewards_agreed, totals.rewards_disputed, totals.rewards_unclear) == (0, 0, 1)
    assert notices == []


def test_rewards_of_a_reward_model_are_neither_computed_nor_disputed(world: SmallRun) -> None:
    """Tokens are replayed; the learner's receipt, whatever it says, is beyond this machine."""
    policy = world.publish(0, step=0)
    codec = TextCodec(world.loaded.tokenizer, world.loaded.model)
    manifest = msgspec.structs.replace(world.manifest, reward="success+0.5*orm@" + "ab" * 16)
    world.work = GroupWork(manifest, world.run, codec)
    group = world.group(policy, PEER, 0)
    raw = seal(PEER, group, run=world.run, now=NOW)
    paid = Receipt(envelope_digest(raw), PEER.public_key, 0, group.slot, int(ReceiptState.VERIFIED), "", 1, 2, 17.5)
    messages: list[control.FromNetwork] = [ready(world, policy), control.EnvelopeArrived(raw)]
    messages.append(control.EnvelopeArrived(seal(world.learner, Receipts(1, (paid,)), run=world.run, now=NOW)))
    port, totals, notices = audit(world, messages)
    assert [verdict.passed for verdict in port.verdicts] == [True]
    assert (totals.rewards_agreed, totals.rewards_disputed, totals.rewards_unclear, totals.own_receipts) == (0, 0, 0, 0)
    assert notices == []
