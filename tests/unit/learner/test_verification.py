"""Every way a group can be wrong is named, and an honest one is verified with the engine's own numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from p2prl.learner.journal import StoredGroup
from p2prl.models.engine_port import Scored
from p2prl.protocol.ledger_messages import ReceiptState
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import EngineClass, RolloutGroup
from tests.unit.learner.world import NOW, STALENESS, World, altered, identity, with_completion

PEER = identity("volunteer")
STRANGER = identity("stranger")


def tokens_of(group: RolloutGroup, index: int) -> list[int]:
    return [int(token) for token in np.frombuffer(group.completions[index].tokens, dtype="<u4")]


def packed(ids: list[int]) -> bytes:
    return np.asarray(ids, dtype="<u4").tobytes()


def zeros(count: int) -> bytes:
    return np.zeros(count, dtype="<f2").tobytes()


def another_token(group: RolloutGroup) -> RolloutGroup:
    ids = tokens_of(group, 0)
    ids[0] = (ids[0] + 1) % 10  # a digit: never the stop token
    return with_completion(group, 0, tokens=packed(ids))


def too_long(group: RolloutGroup) -> RolloutGroup:
    ids = [3] * 9
    return with_completion(group, 0, tokens=packed(ids), logprobs=zeros(9), finished=False)


def cut_short(group: RolloutGroup) -> RolloutGroup:
    return with_completion(group, 0, tokens=packed([3]), logprobs=zeros(1), finished=False)


def outside_vocabulary(group: RolloutGroup) -> RolloutGroup:
    ids = tokens_of(group, 0)
    ids[0] = 1 << 19
    return with_completion(group, 0, tokens=packed(ids))


def shifted_logprobs(group: RolloutGroup) -> RolloutGroup:
    claimed = np.frombuffer(group.completions[0].logprobs, dtype="<f2") - np.float16(0.5)
    return with_completion(group, 0, logprobs=claimed.astype("<f2").tobytes())


def nan_logprobs(group: RolloutGroup) -> RolloutGroup:
    count = len(group.completions[0].logprobs) // 2
    return with_completion(group, 0, logprobs=np.full(count, np.nan, dtype="<f2").tobytes())


def claims_to_finish(group: RolloutGroup) -> RolloutGroup:
    return with_completion(group, 0, finished=not group.completions[0].finished)


LENIENT = EngineClass("transformers", "5", "bfloat16", "cpu")

TAMPERINGS: list[tuple[RejectionReason, Callable[[RolloutGroup], RolloutGroup]]] = [
    (RejectionReason.UNKNOWN_POLICY, lambda g: altered(g, policy=bytes(32))),
    (RejectionReason.UNKNOWN_POLICY, lambda g: altered(g, version=77)),
    (RejectionReason.UNKNOWN_TASK, lambda g: altered(g, task="chain5")),
    (RejectionReason.WRONG_PROMPT, lambda g: altered(g, prompt=g.prompt[:-4])),
    (RejectionReason.WRONG_PROMPT, lambda g: altered(g, slot=g.slot + 1)),
    (RejectionReason.WRONG_SIZE, lambda g: altered(g, completions=g.completions[:1])),
    (RejectionReason.WRONG_SIZE, lambda g: altered(g, completions=(*g.completions, g.completions[0]))),
    (RejectionReason.BAD_TOKENS, too_long),
    (RejectionReason.BAD_TOKENS, cut_short),
    (RejectionReason.BAD_TOKENS, outside_vocabulary),
    (RejectionReason.BAD_TOKENS, claims_to_finish),
    (RejectionReason.SEED_MISMATCH, another_token),
    (RejectionReason.SEED_MISMATCH, lambda g: altered(g, completions=tuple(reversed(g.completions)))),
    (RejectionReason.SEED_MISMATCH, lambda g: altered(another_token(g), engine=LENIENT)),
    (RejectionReason.LOGPROB_MISMATCH, shifted_logprobs),
    (RejectionReason.LOGPROB_MISMATCH, nan_logprobs),
]


@pytest.mark.parametrize(("reason", "tamper"), TAMPERINGS)
def test_every_tampering_is_named(
    world: World, reason: RejectionReason, tamper: Callable[[RolloutGroup], RolloutGroup]
) -> None:
    policy = world.publish(0, step=0)
    honest = world.group(policy, PEER, 3)
    (outcome,) = world.check(world.sealed(tamper(honest), PEER))
    assert (outcome.state, outcome.reason) == (ReceiptState.REJECTED, reason)
    receipt = outcome.receipt
    assert (receipt.state, receipt.reason) == (ReceiptState.REJECTED, reason)
    assert (receipt.tokens, receipt.completions, receipt.reward) == (0, 0, 0.0)


def test_every_reason_has_a_group_that_meets_it() -> None:
    elsewhere = {RejectionReason.TOO_STALE, RejectionReason.DUPLICATE_SLOT}
    assert {reason for reason, _ in TAMPERINGS} | elsewhere == set(RejectionReason)


def test_a_lenient_word_type_cannot_be_claimed(world: World) -> None:
    """In bfloat16 the tolerance forgives mean log-prob errors of .05; a group of a float32 run must not reach it."""
    policy = world.publish(0, step=0)
    honest = world.group(policy, PEER, 0)
    for index in range(2):
        claimed = np.frombuffer(honest.completions[index].logprobs, dtype="<f2").astype(np.float32) - 0.035
        honest = with_completion(honest, index, logprobs=claimed.astype("<f2").tobytes())
    (outcome,) = world.check(world.sealed(altered(honest, engine=LENIENT), PEER))
    assert outcome.reason == RejectionReason.LOGPROB_MISMATCH


def test_another_peers_work_is_not_ones_own(world: World) -> None:
    policy = world.publish(0, step=0)
    (outcome,) = world.check(world.sealed(world.group(policy, PEER, 3), STRANGER))
    assert outcome.state is ReceiptState.REJECTED
    assert outcome.reason in (RejectionReason.WRONG_PROMPT, RejectionReason.SEED_MISMATCH)


def test_honest_groups_of_several_versions_are_verified_in_order(world: World) -> None:
    policies = [world.publish(version, step=version) for version in range(3)]
    groups = [world.group(policies[v], peer, slot) for v, peer, slot in ((2, PEER, 0), (0, STRANGER, 5), (2, PEER, 1))]
    stored = [world.sealed(g, p) for g, p in zip(groups, (PEER, STRANGER, PEER), strict=True)]
    outcomes = world.check(*stored, step=2)
    assert [outcome.stored for outcome in outcomes] == stored
    for outcome, group in zip(outcomes, groups, strict=True):
        assert (outcome.state, outcome.reason) == (ReceiptState.VERIFIED, "")
        assert outcome.replay is not None
        for own, completion in zip(outcome.replay.behavior_logprobs, group.completions, strict=True):
            claimed = np.frombuffer(completion.logprobs, dtype="<f2")
            assert own == pytest.approx(claimed.tolist(), abs=2e-3)  # what float16 keeps of them
        tokens = sum(len(completion.tokens) // 4 for completion in group.completions)
        receipt = outcome.receipt
        assert (receipt.tokens, receipt.completions) == (tokens, 2)
        assert receipt.reward == pytest.approx(sum(c.reward for c in group.completions) / 2)


def test_a_small_lie_about_log_probs_passes_and_is_never_trained_on(world: World) -> None:
    """Deflated by less than rounding may explain: the group is sound, and what trains are the learner's own."""
    policy = world.publish(0, step=0)
    lie = honest = world.group(policy, PEER, 0)
    for index in range(2):
        claimed = np.frombuffer(honest.completions[index].logprobs, dtype="<f2").astype(np.float32) - 0.01
        lie = with_completion(lie, index, logprobs=claimed.astype("<f2").tobytes())
    truth, lied = (world.check(world.sealed(group, PEER))[0] for group in (honest, lie))
    assert truth.replay is not None
    assert lied.replay is not None
    assert lied.state is ReceiptState.VERIFIED
    assert lied.replay.behavior_logprobs == truth.replay.behavior_logprobs


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_replay_without_finite_log_probs_is_rejected_before_it_can_train(
    world: World, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    policy = world.publish(0, step=0)
    group = world.group(policy, PEER, 0)
    honest = world.engine.replay

    def broken(*arguments: Any) -> list[Scored]:
        first, *others = honest(*arguments)
        return [replace(first, logprobs=(value, *first.logprobs[1:])), *others]

    monkeypatch.setattr(world.engine, "replay", broken)
    (outcome,) = world.check(world.sealed(group, PEER))
    assert (outcome.state, outcome.reason) == (ReceiptState.REJECTED, RejectionReason.LOGPROB_MISMATCH)


def test_a_claimed_reward_is_never_read(world: World) -> None:
    policy = world.publish(0, step=0)
    honest = world.group(policy, PEER, 0)
    boast = with_completion(with_completion(honest, 0, reward=9.0), 1, reward=9.0)
    truth, boasted = (world.check(world.sealed(group, PEER))[0].receipt.reward for group in (honest, boast))
    assert truth == boasted <= 1.0


def test_one_slot_counts_once_within_a_batch(world: World) -> None:
    policy = world.publish(0, step=0)
    group = world.group(policy, PEER, 0)
    first, second = world.sealed(group, PEER), world.sealed(group, PEER, now=NOW + 1)
    assert first.digest != second.digest
    outcomes = world.check(first, second)
    assert [(o.state, o.reason) for o in outcomes] == [
        (ReceiptState.VERIFIED, ""),
        (ReceiptState.REJECTED, RejectionReason.DUPLICATE_SLOT),
    ]


@pytest.mark.parametrize("used", [False, True])
def test_one_slot_counts_once_across_batches(world: World, used: bool) -> None:
    policy = world.publish(0, step=0)
    group = world.group(policy, PEER, 0)
    first, second = world.sealed(group, PEER), world.sealed(group, PEER, now=NOW + 1)
    world.store(first, second)
    with world.journal.transaction():
        world.journal.verified(first.digest, behavior=b"", rewards=b"")
        if used:
            world.journal.begin_step(0, [first.digest])
    (outcome,) = world.check(second)
    assert outcome.reason == RejectionReason.DUPLICATE_SLOT


def test_a_rejected_group_does_not_take_the_slot(world: World) -> None:
    policy = world.publish(0, step=0)
    group = world.group(policy, PEER, 0)
    bad, good = world.sealed(another_token(group), PEER), world.sealed(group, PEER)
    world.store(bad, good)
    with world.journal.transaction():
        world.journal.refused(bad.digest, state="rejected", reason=RejectionReason.SEED_MISMATCH)
    assert world.check(good)[0].state is ReceiptState.VERIFIED


def late(world: World) -> StoredGroup:
    return world.sealed(world.group(world.publish(0, step=0), PEER, 0), PEER)


def test_work_at_the_bound_counts_and_past_it_expires(world: World) -> None:
    group = late(world)
    assert world.check(group, step=STALENESS)[0].state is ReceiptState.VERIFIED
    (outcome,) = world.check(group, step=STALENESS + 1)
    assert (outcome.state, outcome.reason) == (ReceiptState.EXPIRED, RejectionReason.TOO_STALE)


def test_work_of_a_version_that_has_left_the_shelf_expires(world: World) -> None:
    group = late(world)
    world.publish(1, step=10)
    world.shelf.drop_before_step(10 - STALENESS)
    (outcome,) = world.check(group, step=10)
    assert (outcome.state, outcome.reason) == (ReceiptState.EXPIRED, RejectionReason.TOO_STALE)
    assert outcome.receipt.tokens == 0
