"""Verification: every fault of a group is named, and honest groups get the scorer's own numbers."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2prl.errors import RemoteProtocolError
from p2prl.learner.intake.settlement import receipt_of
from p2prl.learner.journal.groups import GroupState, StoredGroup
from p2prl.models.groups.group_work import ReplayTools
from p2prl.models.scorer_port import Scored
from p2prl.protocol.envelope import seal
from p2prl.protocol.ledger_messages import ReceiptState
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import EngineClass, RolloutGroup
from p2prl.protocol.signed_group import read_group
from p2prl.validator.verdicts import judge
from tests.unit.learner.small_run import NOW, STALENESS, SmallRun, altered, identity, with_completion
from tests.unit.uneven_task import install_uneven_task

PEER = identity("volunteer")
STRANGER = identity("stranger")


def tokens_of(group: RolloutGroup, index: int) -> list[int]:
    return [int(token) for token in np.frombuffer(group.completions[index].tokens, dtype="<u4")]


def packed(ids: list[int]) -> bytes:
    return np.asarray(ids, dtype="<u4").tobytes()


def zeros(count: int) -> bytes:
    return np.zeros(count, dtype="<f2").tobytes()


def another_token(group: RolloutGroup) -> RolloutGroup:
    # A completion of one token is the stop token alone: another one would not be finished.
    index = next(i for i in range(len(group.completions)) if len(tokens_of(group, i)) > 1)
    ids = tokens_of(group, index)
    ids[0] = (ids[0] + 1) % 10  # a digit: never the stop token
    return with_completion(group, index, tokens=packed(ids))


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
    claimed = np.frombuffer(group.completions[0].logprobs, dtype="<f2") - np.float16(12)
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
    small_run: SmallRun, reason: RejectionReason, tamper: Callable[[RolloutGroup], RolloutGroup]
) -> None:
    policy = small_run.publish(0, step=0)
    honest = small_run.group(policy, PEER, 3)
    (outcome,) = small_run.check(small_run.sealed(tamper(honest), PEER))
    assert (outcome.state, outcome.reason) == (ReceiptState.REJECTED, reason)
    receipt = receipt_of(outcome)
    assert (receipt.state, receipt.reason) == (ReceiptState.REJECTED, reason)
    assert (receipt.tokens, receipt.completions, receipt.reward) == (0, 0, 0.0)


def test_a_group_in_a_slot_without_valid_work_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = SmallRun(tmp_path, task=install_uneven_task(tmp_path, monkeypatch))
    policy = run.publish(0, step=0)
    groups = {}
    unusable = None
    for slot in range(64):
        try:
            groups[slot] = run.group(policy, PEER, slot)
        except RemoteProtocolError:
            unusable = slot
        if groups and unusable is not None:
            break
    assert unusable is not None
    (group,) = list(groups.values())[:1]
    forged, longest = altered(group, slot=unusable), altered(group, slot=unusable, prompt=packed([3] * 41))
    outcomes = run.check(*(run.sealed(each, PEER) for each in (forged, longest, group)), step=0)
    rejected = (ReceiptState.REJECTED, RejectionReason.WRONG_PROMPT)
    assert [(o.state, o.reason) for o in outcomes] == [rejected, rejected, (ReceiptState.VERIFIED, "")]
    signed = [read_group(seal(PEER, each, run=run.run, now=NOW)) for each in (forged, group)]
    verdicts = judge(ReplayTools(run.scorer, run.work), policy.manifest, signed, validator=bytes(32))
    assert [verdict.reason for verdict, _ in verdicts] == [RejectionReason.WRONG_PROMPT, ""]
    run.close()


ELSEWHERE = {
    RejectionReason.TOO_STALE: ("test_admission", "test_group_at_the_bound_counts_and_above_it_expires"),
    RejectionReason.DUPLICATE_SLOT: ("test_admission", "test_one_slot_counts_once_within_a_batch"),
    RejectionReason.ENGINE_MISMATCH: ("test_admission", "test_claimed_dtype_does_not_widen_the_tolerance"),
    RejectionReason.WITHHELD_SLOTS: ("test_slot_prices", "test_groups_that_pay_for_lost_slots_are_voided"),
    RejectionReason.EXCLUDED: ("test_exclusion_service", "test_a_key_that_forges_is_excluded_told_and_remembered"),
}
"""Reasons that no tampering with one group brings about, and the test of each."""


def test_every_rejection_reason_is_tested() -> None:
    assert {reason for reason, _ in TAMPERINGS} | set(ELSEWHERE) == set(RejectionReason)


@pytest.mark.parametrize(("reason", "where"), ELSEWHERE.items())
def test_reasons_that_need_more_than_one_group_are_asserted_where_they_are_said_to_be(
    reason: RejectionReason, where: tuple[str, str]
) -> None:
    module, name = where
    tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text())
    (test,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    asserted = {ast.unparse(part) for node in ast.walk(test) if isinstance(node, ast.Assert) for part in ast.walk(node)}
    assert asserted & {f"RejectionReason.{reason.name}", repr(reason.value)}


def test_claimed_dtype_does_not_widen_the_tolerance(small_run: SmallRun) -> None:
    """In bfloat16 mean log-prob errors of .05 are tolerated; a group of a float32 run must not get that tolerance. It
    earns nothing, but as a machine may compute so, it is not called a cheat."""
    policy = small_run.publish(0, step=0)
    honest = small_run.group(policy, PEER, 0)
    for index in range(2):
        claimed = np.frombuffer(honest.completions[index].logprobs, dtype="<f2").astype(np.float32) - 0.035
        honest = with_completion(honest, index, logprobs=claimed.astype("<f2").tobytes())
    (outcome,) = small_run.check(small_run.sealed(altered(honest, engine=LENIENT), PEER))
    assert (outcome.state, outcome.reason) == (ReceiptState.REJECTED, RejectionReason.ENGINE_MISMATCH)
    assert receipt_of(outcome).tokens == 0


def test_work_of_another_peer_is_rejected(small_run: SmallRun) -> None:
    policy = small_run.publish(0, step=0)
    (outcome,) = small_run.check(small_run.sealed(small_run.group(policy, PEER, 3), STRANGER))
    assert outcome.state is ReceiptState.REJECTED
    assert outcome.reason in (RejectionReason.WRONG_PROMPT, RejectionReason.SEED_MISMATCH)


def test_honest_groups_of_several_versions_are_verified(small_run: SmallRun) -> None:
    policies = [small_run.publish(version, step=version) for version in range(3)]
    groups = [
        small_run.group(policies[v], peer, slot) for v, peer, slot in ((2, PEER, 0), (0, STRANGER, 5), (2, PEER, 1))
    ]
    stored = [small_run.sealed(g, p) for g, p in zip(groups, (PEER, STRANGER, PEER), strict=True)]
    outcomes = small_run.check(*stored, step=2)
    assert [outcome.stored for outcome in outcomes] == stored
    for outcome, group in zip(outcomes, groups, strict=True):
        assert (outcome.state, outcome.reason) == (ReceiptState.VERIFIED, "")
        assert outcome.replay is not None
        for own, completion in zip(outcome.replay.behavior_logprobs, group.completions, strict=True):
            claimed = np.frombuffer(completion.logprobs, dtype="<f2")
            assert own == pytest.approx(claimed.tolist(), abs=2e-3)  # the precision of float16
        tokens = sum(len(completion.tokens) // 4 for completion in group.completions)
        receipt = receipt_of(outcome)
        assert (receipt.tokens, receipt.completions) == (tokens, 2)
        assert receipt.reward == pytest.approx(sum(c.reward for c in group.completions) / 2)


def test_small_log_prob_lie_passes_and_is_never_trained_on(small_run: SmallRun) -> None:
    """Deflated within the rounding tolerance: the group passes, and the learner trains on its own log-probs."""
    policy = small_run.publish(0, step=0)
    lie = honest = small_run.group(policy, PEER, 0)
    for index in range(2):
        claimed = np.frombuffer(honest.completions[index].logprobs, dtype="<f2").astype(np.float32) - 0.01
        lie = with_completion(lie, index, logprobs=claimed.astype("<f2").tobytes())
    truth, lied = (small_run.check(small_run.sealed(group, PEER))[0] for group in (honest, lie))
    assert truth.replay is not None
    assert lied.replay is not None
    assert lied.state is ReceiptState.VERIFIED
    assert lied.replay.behavior_logprobs == truth.replay.behavior_logprobs


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_replay_that_is_not_finite_is_rejected(
    small_run: SmallRun, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    policy = small_run.publish(0, step=0)
    group = small_run.group(policy, PEER, 0)
    honest = small_run.scorer.replay

    def broken(*arguments: Any) -> list[Scored]:
        first, *others = honest(*arguments)
        return [replace(first, logprobs=(value, *first.logprobs[1:])), *others]

    monkeypatch.setattr(small_run.scorer, "replay", broken)
    (outcome,) = small_run.check(small_run.sealed(group, PEER))
    assert (outcome.state, outcome.reason) == (ReceiptState.REJECTED, RejectionReason.LOGPROB_MISMATCH)


def test_claimed_reward_is_never_read(small_run: SmallRun) -> None:
    policy = small_run.publish(0, step=0)
    honest = small_run.group(policy, PEER, 0)
    boast = with_completion(with_completion(honest, 0, reward=9.0), 1, reward=9.0)
    truth, boasted = (receipt_of(small_run.check(small_run.sealed(group, PEER))[0]).reward for group in (honest, boast))
    assert truth == boasted <= 1.0


def test_one_slot_counts_once_within_a_batch(small_run: SmallRun) -> None:
    policy = small_run.publish(0, step=0)
    group = small_run.group(policy, PEER, 0)
    first, second = small_run.sealed(group, PEER), small_run.sealed(group, PEER, now=NOW + 1)
    assert first.digest != second.digest
    outcomes = small_run.check(first, second)
    assert [(o.state, o.reason) for o in outcomes] == [
        (ReceiptState.VERIFIED, ""),
        (ReceiptState.REJECTED, RejectionReason.DUPLICATE_SLOT),
    ]


@pytest.mark.parametrize("state", ["verified", "used", "unused"])
def test_one_slot_counts_once_across_batches(small_run: SmallRun, state: str) -> None:
    policy = small_run.publish(0, step=0)
    group = small_run.group(policy, PEER, 0)
    first, second = small_run.sealed(group, PEER), small_run.sealed(group, PEER, now=NOW + 1)
    small_run.store(first, second)
    with small_run.journal.transaction():
        small_run.journal.groups.mark_verified(first.digest, behavior=b"", rewards=b"")
        if state == "used":
            small_run.journal.batches.begin(0, [first.digest])
        if state == "unused":
            small_run.journal.groups.mark_unused(first.digest)
    (outcome,) = small_run.check(second)
    assert outcome.reason == RejectionReason.DUPLICATE_SLOT


def test_rejected_group_does_not_take_the_slot(small_run: SmallRun) -> None:
    policy = small_run.publish(0, step=0)
    group = small_run.group(policy, PEER, 0)
    bad, good = small_run.sealed(another_token(group), PEER), small_run.sealed(group, PEER)
    small_run.store(bad, good)
    with small_run.journal.transaction():
        small_run.journal.groups.mark_refused(
            bad.digest, state=GroupState.REJECTED, reason=RejectionReason.SEED_MISMATCH
        )
    assert small_run.check(good)[0].state is ReceiptState.VERIFIED


def group_of_version_zero(small_run: SmallRun) -> StoredGroup:
    return small_run.sealed(small_run.group(small_run.publish(0, step=0), PEER, 0), PEER)


def test_group_at_the_bound_counts_and_above_it_expires(small_run: SmallRun) -> None:
    group = group_of_version_zero(small_run)
    assert small_run.check(group, step=STALENESS)[0].state is ReceiptState.VERIFIED
    (outcome,) = small_run.check(group, step=STALENESS + 1)
    assert (outcome.state, outcome.reason) == (ReceiptState.EXPIRED, RejectionReason.TOO_STALE)


def test_group_of_a_dropped_version_expires(small_run: SmallRun) -> None:
    group = group_of_version_zero(small_run)
    small_run.publish(1, step=10)
    small_run.published.drop_before_step(10 - STALENESS)
    (outcome,) = small_run.check(group, step=10)
    assert (outcome.state, outcome.reason) == (ReceiptState.EXPIRED, RejectionReason.TOO_STALE)
    assert receipt_of(outcome).tokens == 0


def test_a_group_of_another_rule_of_seeds_expires(tmp_path: Path) -> None:
    """An earlier release sampled it before the update: nobody's fault, and the rule that it followed is gone."""
    small_run = SmallRun(tmp_path)
    policy = small_run.publish(0, step=0)
    group = small_run.group(policy, PEER, 0)
    (new, old) = (small_run.sealed(each, PEER) for each in (group, altered(group, seeds=1)))
    small_run.store(new, old)
    states = [(outcome.state, outcome.reason) for outcome in small_run.check(new, old)]
    assert states == [(ReceiptState.VERIFIED, ""), (ReceiptState.EXPIRED, RejectionReason.TOO_STALE)]
    small_run.close()
