"""Groups kept for disputes: bounded in bytes, and in replays that others can ask for."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from p2prl.protocol.digests import digest
from p2prl.protocol.envelope import Opened, open_envelope, seal
from p2prl.protocol.ledger_messages import CheckOutcome, Receipt, ReceiptState, VerdictCheck
from p2prl.protocol.rollout_group import EngineClass
from p2prl.validator.disputes import Disputes
from p2prl_lab.testing.protocol_swarm import group_of
from tests.unit.learner.small_run import NOW, identity

ME, OTHER = identity("me").public_key, identity("other").public_key


MINE = EngineClass("transformers", "5.1", "bfloat16", "NVIDIA RTX 3060")


def group(slot: int, engine: EngineClass = MINE) -> Opened:
    body = msgspec.structs.replace(group_of(slot), engine=engine)
    return open_envelope(seal(identity("volunteer"), body, run=bytes(32), now=NOW), now=None)


def rejected(*groups: Opened, reason: str = "engine_mismatch") -> tuple[Receipt, ...]:
    state = int(ReceiptState.REJECTED)
    return tuple(Receipt(each.digest, each.author, 0, 0, state, reason, 0, 0, 0.0) for each in groups)


def disputed(*groups: Opened) -> tuple[VerdictCheck, ...]:
    return tuple(VerdictCheck(OTHER, each.digest, int(CheckOutcome.CONTRADICTED), 9) for each in groups)


def test_the_oldest_groups_make_way(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [group(slot) for slot in range(4)]
    monkeypatch.setattr("p2prl.validator.disputes._RECENT_BYTES", sum(len(each.raw) for each in groups[1:]))
    disputes = Disputes(ME)
    for each in (*groups, groups[3]):
        disputes.keep(each)
    assert list(disputes.groups_to_replay(disputed(*groups), NOW)) == groups[1:]
    assert list(disputes.groups_to_replay(disputed(*groups), NOW)) == [], "once"


def test_groups_of_the_last_minutes_of_a_busy_run_are_kept_and_those_of_an_hour_are_not() -> None:
    """Four groups a second, each of eight completions of 250 tokens at 6 bytes."""
    disputes, one = Disputes(ME), group(0)
    groups = [replace(one, raw=bytes(12_000), digest=digest("g", n.to_bytes(4, "big"))) for n in range(4 * 3600)]
    for each in groups[: 4 * 600]:
        disputes.keep(each)
    assert list(disputes.groups_to_replay(disputed(*groups[:3]), NOW)) == groups[:3]
    for each in groups[4 * 600 :]:
        disputes.keep(each)
    assert list(disputes.groups_to_replay(disputed(*groups[: 4 * 2400]), NOW)) == []


def test_replays_for_disputes_have_a_budget_that_comes_back() -> None:
    disputes = Disputes(ME)
    groups = [group(slot) for slot in range(40)]
    for each in groups:
        disputes.keep(each)
    assert len(list(disputes.groups_to_replay(disputed(*groups), NOW))) == 16
    assert len(list(disputes.groups_to_replay(disputed(*groups), NOW + 80))) == 10


def test_groups_whose_engine_differs_are_replayed_by_a_validator_of_their_class() -> None:
    disputes = Disputes(ME)
    engines = [
        MINE,
        EngineClass("transformers", "5.0", "bfloat16", "NVIDIA RTX 3060"),
        EngineClass("vllm", "5.1", "bfloat16", "NVIDIA RTX 3060"),
        EngineClass("transformers", "5.1", "float16", "NVIDIA RTX 3060"),
        EngineClass("transformers", "5.1", "bfloat16", "NVIDIA H200"),
    ]
    groups = [group(slot, engine) for slot, engine in enumerate(engines)]
    for each in groups:
        disputes.keep(each)
    assert list(disputes.groups_of_class(rejected(*groups, reason="seed_mismatch"), MINE, NOW)) == []
    assert list(disputes.groups_of_class(rejected(*groups, group(9)), MINE, NOW)) == groups[:2], (
        "another version will do"
    )
    assert list(disputes.groups_of_class(rejected(*groups), MINE, NOW)) == [], "once"


def test_replays_of_other_engines_share_the_budget_of_disputes() -> None:
    disputes = Disputes(ME)
    groups = [group(slot) for slot in range(40)]
    for each in groups:
        disputes.keep(each)
    assert len(list(disputes.groups_to_replay(disputed(*groups[:10]), NOW))) == 10
    assert len(list(disputes.groups_of_class(rejected(*groups), MINE, NOW))) == 6
