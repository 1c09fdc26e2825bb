"""Swarms with validators on virtual time: who replays is paid in full, who does not is paid nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.protocol.ledger_messages import ReceiptState
from p2prl.sim import simulated_run
from p2prl.sim.swarm_config import SwarmConfig
from p2prl.testing.adversaries import ADVERSARIES
from p2prl_lab.sim.validated_swarm import ValidatedSwarm

CONFIG = SwarmConfig(volunteers=4, updates=3, step_seconds=20.0, seed=5)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(simulated_run, "_EVALUATION_PROMPTS", 8)  # no test here asks for the reward
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_lazy_lying_and_copying_validators_are_paid_nothing_beside_an_honest_one(tmp_path: Path) -> None:
    kinds = ["honest", "lazy", "lying", "copying"]
    swarm = ValidatedSwarm(
        CONFIG, tiny_model("chain4", seed=1), tmp_path, validators=kinds, cheats=1, cheat=ADVERSARIES["fabricate"]
    )
    result = swarm.run(on_progress=lambda _: None)
    board = swarm.board()
    assert result.updates == CONFIG.updates
    assert result.groups_rejected > 0
    rows = {swarm.kinds[key]: row for key, row in board.validators.items()}
    audits = {swarm.kinds[key]: audit for key, audit in swarm.audits.items()}
    honest = rows["honest"]
    assert honest.failed_checks == 0
    assert honest.failed_groups > 0, "it found the fabricated groups"
    assert audits["honest"].checks_agreed >= 0.8 * audits["honest"].passed > 20, "the rest waits for its receipt"
    assert honest.tokens > 0
    paid = sum(person.tokens for person in board.people.values())
    assert honest.tokens >= 0.8 * paid, "it replayed nearly every credited group, and is paid for each"
    for kind in ("lazy", "lying", "copying"):
        assert audits[kind].replayed > 20
        assert kind not in rows or rows[kind].tokens == 0
    assert set(rows) == {"honest", "lying"}, "who proves nothing leaves no trace"
    assert board.overruled_receipts == 0


def test_training_goes_on_without_validators(tmp_path: Path) -> None:
    swarm = ValidatedSwarm(
        CONFIG, tiny_model("chain4", seed=1), tmp_path, validators=["honest", "lying"], crash_validators_s=130.0
    )
    result = swarm.run(on_progress=lambda _: None)
    assert result.updates == CONFIG.updates
    assert result.groups_rejected == 0
    (honest,) = [swarm.audits[key] for key, kind in swarm.kinds.items() if kind == "honest"]
    assert 0 < honest.replayed < result.groups_verified


def test_two_ledgers_of_one_run_pay_the_same_groups_once_each_and_hold_no_receipt_of_the_other(tmp_path: Path) -> None:
    swarm = ValidatedSwarm(
        CONFIG,
        tiny_model("chain4", seed=1),
        tmp_path,
        validators=["honest"],
        cheats=1,
        cheat=ADVERSARIES["fabricate"],
        own_ledgers=True,
    )
    result = swarm.run(on_progress=lambda _: None)
    assert result.updates == CONFIG.updates
    (validator,) = swarm.kinds
    learners, own = swarm.receipts(), swarm.receipts(validator)
    assert {r.group for r in own} >= {r.group for r in learners if r.state == ReceiptState.VERIFIED}
    assert len({(r.peer, r.slot) for r in own}) == len(own) > 20, "a slot is paid once"
    facts = {r.group: (r.peer, r.slot, r.version, r.tokens, r.completions) for r in own}
    rewards = {r.group: r.reward for r in own}
    for receipt in learners:
        if receipt.state == ReceiptState.VERIFIED:
            assert facts[receipt.group] == (
                receipt.peer,
                receipt.slot,
                receipt.version,
                receipt.tokens,
                receipt.completions,
            )
            assert rewards[receipt.group] == pytest.approx(receipt.reward, abs=1e-6)
    rejected = {r.group for r in learners if r.state == ReceiptState.REJECTED}
    assert rejected, "there was a cheat"
    assert not rejected & set(facts)
    audit = swarm.audits[validator]
    assert (audit.own_receipts, audit.own_tokens) == (len(own), sum(r.tokens for r in own))


def test_a_second_ledger_goes_on_while_the_learner_is_away(tmp_path: Path) -> None:
    swarm = ValidatedSwarm(CONFIG, tiny_model("chain4", seed=1), tmp_path, validators=["honest"], own_ledgers=True)
    swarm.network.run_for(60.0)
    (validator,) = swarm.kinds
    before = len(swarm.receipts(validator))
    swarm.network.crash(swarm.simulated.key.peer_id)
    swarm.network.run_for(120.0)
    after = swarm.receipts(validator)
    assert len(after) > before > 0
    assert {r.group for r in after} > {r.group for r in swarm.receipts() if r.state == ReceiptState.VERIFIED}
