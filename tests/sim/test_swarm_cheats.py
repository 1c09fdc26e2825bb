"""Swarms with a zoo of cheats on virtual time: nothing forged is trained on, choosing is priced, honest work is kept.

Whole swarms with models take seconds: only they show that the parts work together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from p2prl.learner.intake import slot_accounts
from p2prl.learner.journal.journal import Journal
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.protocol import ledger_chain
from p2prl.protocol.ledger_messages import Receipts, ReceiptState
from p2prl.sim import simulated_run
from p2prl.sim.swarm_config import SwarmConfig
from p2prl_lab.sim.dishonest_volunteers import FORGED
from p2prl_lab.sim.mixed_swarm import MixedSwarm

Outcomes = dict[str, Counter[tuple[ReceiptState, str]]]
"""Receipts by the kind of volunteer, "" for honest ones."""


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(simulated_run, "_EVALUATION_PROMPTS", 8)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def outcomes(directory: Path, cheats: tuple[str, ...], *, updates: int, checks: bool = True) -> Outcomes:
    """The ledger of a swarm of three honest volunteers and these cheats."""
    config = SwarmConfig(volunteers=3 + len(cheats), updates=updates, sample_seconds=12.0, publish_every=4, seed=3)
    swarm = MixedSwarm(config, tiny_model("chain4", seed=1), directory, cheats=cheats, checks=checks)
    assert swarm.run(on_progress=lambda _: None).updates == updates
    journal = Journal(directory / "learner" / "journal.db")
    found: Outcomes = {kind: Counter() for kind in ("", *cheats)}
    run, learner, head = swarm.simulated.run, swarm.simulated.key.public_key, ledger_chain.GENESIS
    for height, raw in enumerate(journal.ledger.entries(0, 1_000_000)):
        opened, head = ledger_chain.follow(raw, height=height, head=head, run=run, learner=learner)
        if isinstance(opened.body, Receipts):
            for receipt in opened.body.receipts:
                found[swarm.kinds[receipt.peer]][ReceiptState(receipt.state), receipt.reason] += 1
    journal.close()
    return found


def credited(of: Counter[tuple[ReceiptState, str]]) -> int:
    return of[ReceiptState.VERIFIED, ""]


def test_no_forged_group_is_credited_and_no_honest_one_is_lost(tmp_path: Path) -> None:
    forging = tuple(sorted(FORGED))
    found = outcomes(tmp_path, forging, updates=1)
    assert set(found[""]) == {(ReceiptState.VERIFIED, "")}
    for kind in forging:
        assert sum(found[kind].values()) > 0, "it was judged"
        assert credited(found[kind]) == 0
        assert {state for state, _ in found[kind]} == {ReceiptState.REJECTED}


def test_a_stolen_machine_key_does_not_have_its_owners_other_machine_blamed(tmp_path: Path) -> None:
    found = outcomes(tmp_path, ("poisoned",), updates=6)
    forged = found["poisoned"]
    assert credited(forged) == 0
    assert forged[ReceiptState.REJECTED, "excluded"] > 0, "by then its forgeries have excluded a key"
    assert set(found[""]) == {(ReceiptState.VERIFIED, "")}, "one of these is the owner's"


@pytest.mark.parametrize("kind", ["best of versions", "rotating keys", "machines of one owner"])
def test_choosers_deliver_valid_groups_and_cost_no_honest_one(tmp_path: Path, kind: str) -> None:
    """How much of the training they get is what `test_choosers` is about; in so few updates nobody is known yet."""
    found = outcomes(tmp_path, (kind,), updates=3)
    assert all(set(of) == {(ReceiptState.VERIFIED, "")} for of in found.values())


@pytest.mark.parametrize("kind", ["starving", "stating"])
def test_crowding_takes_nothing_from_honest_volunteers(tmp_path: Path, kind: str) -> None:
    found = outcomes(tmp_path, (kind,), updates=3)
    assert set(found[""]) == {(ReceiptState.VERIFIED, "")}
    assert credited(found[""]) >= 2 * 16
    assert not found[kind]


def test_a_learner_that_trusts_credits_what_is_forged(tmp_path: Path) -> None:
    found = outcomes(tmp_path, ("fabricated", "copied"), updates=1, checks=False)
    for of in found.values():
        assert set(of) == {(ReceiptState.VERIFIED, "")}
    assert credited(found["copied"]) > credited(found["fabricated"]) > 0, "copies come in numbers"


def test_volunteers_that_leave_out_slots_are_turned_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_accounts, "SLOTS_PER_FREE_LOSS", 2_048)  # one lost slot is free, not 32
    found = outcomes(tmp_path, ("selected", "withheld"), updates=4)
    assert all(set(of) <= {(ReceiptState.VERIFIED, "")} for of in found.values()), "and what was stored is credited"
    honest = credited(found[""]) / 3
    assert 1 <= credited(found["selected"]) <= 2, "one of eight opens a gap that counts for four"
    assert 1 <= credited(found["withheld"]) <= 3, "one of two opens one that is free, and no second"
    assert honest >= 12
