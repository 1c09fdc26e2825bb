"""Groups and receipts for people and scripts: each figure stands where it belongs, and none is claimed that is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from p2prl.cli.views.receipt_view import explain_lines, group_document, record_document, record_lines, table_lines
from p2prl.client.own_groups import OwnGroup, OwnReceipt
from p2prl.protocol.identity import peer_id_of
from p2prl.protocol.ledger_messages import CheckOutcome
from p2prl.scoreboard.group_record import GroupRecord, SignedReceipt, SignedVerdict
from p2prl.scoreboard.ledger.credit import credit_of
from p2prl_lab.testing.sample_ledgers import identity, receipt, verdict_on

RECEIPT = OwnReceipt(step=12, sent_ms=1_790_000_060_000, tokens=1_500, completions=8, reward=0.625)
GROUP = OwnGroup(
    digest=bytes(range(32)),
    version=6,
    slot=41,
    state="verified",
    reason="",
    tokens=1_600,
    reward=0.5,
    created=1_790_000_000.0,
    is_kept=True,
    receipt=RECEIPT,
)
REJECTED = replace(GROUP, state="rejected", reason="seed_mismatch", receipt=replace(RECEIPT, tokens=0))


def document(group: OwnGroup, **options: Any) -> dict[str, Any]:
    return group_document(group, "seat-1", **{"parameters": 10**9, "in_escrow": False, **options})


def test_a_verified_group_has_the_learners_figures_beside_its_own() -> None:
    found = document(GROUP, in_escrow=True)
    assert (found["sampled_tokens"], found["credited_tokens"]) == (1_600, 1_500)
    assert (found["own_reward"], found["learner_reward"]) == (0.5, 0.625)
    assert found["credit"] == credit_of(1_500, 10**9) > 0
    assert (found["learner_step"], found["in_escrow"], found["kept"]) == (12, True, True)
    assert (found["sampled_at"][:19], found["judged_at"][:19]) == ("2026-09-21T14:13:20", "2026-09-21T14:14:20")


def test_a_group_without_credit_has_no_reward_of_the_learners() -> None:
    found = document(REJECTED)
    assert (found["credited_tokens"], found["credit"], found["learner_reward"]) == (0, 0.0, None)
    assert found["learner_step"] == 12
    waiting = document(replace(GROUP, state="stored", receipt=None))
    assert (waiting["credited_tokens"], waiting["learner_step"], waiting["judged_at"]) == (0, None, None)
    assert waiting["learner_reward"] is None
    old = document(replace(GROUP, receipt=None))
    assert old["credited_tokens"] == 1_600, "settled by an older release: as sampled"


def test_a_table_tells_seats_apart_only_where_there_are_several() -> None:
    rows = [document(GROUP), document(REJECTED)]
    head, verified, rejected = table_lines(rows)
    assert verified.split() == ["000102030405", "2026-09-21", "14:13", "6", "41", "verified", "1,500", "–"]
    assert rejected.endswith("0  seed_mismatch")
    ends = [line.index(word) + len(word) for line, word in ((head, "tokens"), (verified, "1,500"))]
    assert ends[0] == ends[1], "figures stand below their heading"
    assert len(table_lines([*rows, rows[0] | {"seat": "seat-2"}])[3].split("(seat-2)")) == 2


def test_a_verified_group_is_explained_with_its_judgment_and_its_credit() -> None:
    found = document(GROUP, in_escrow=True)
    text = "\n".join(explain_lines(GROUP, found, 20))
    assert "slot 41 of version 6, 1,600 tokens, mean reward 0.500 by this machine's own scoring" in text
    assert "at its step 12, 8 completions, mean reward 0.625" in text
    assert "in escrow until 20 further groups are credited or the run ends" in text
    assert "1,500 tokens" in text
    assert "escrow" not in "\n".join(explain_lines(GROUP, document(GROUP), 20))


def test_a_rejected_group_is_explained_without_figures_that_do_not_count() -> None:
    text = "\n".join(explain_lines(REJECTED, document(REJECTED), 20))
    assert "State      rejected (seed_mismatch)" in text
    assert "at its step 12\n" in text
    assert "Credit     none" in text
    unscored = replace(GROUP, reward=None, receipt=None, state="stored")
    text = "\n".join(explain_lines(unscored, document(unscored), 20))
    assert "scoring" not in text
    assert "Judged" not in text


MINE, VAL = receipt(0, identity("ann"), tokens=300), identity("val")


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (None, "not compared by the learner yet"),
        (CheckOutcome.AGREED, "the learner's own replay agrees"),
        (CheckOutcome.CONTRADICTED, "a third validator decides"),
        (CheckOutcome.FAILED, "it does not count"),
        (CheckOutcome.UNCLEAR, "by what rounding explains"),
    ],
)
def test_what_a_ledger_says_of_a_group(outcome: CheckOutcome | None, told: str) -> None:
    verdict = verdict_on(MINE, passed=False, mismatched=3, worst_margin=0.25)
    record = GroupRecord(height=7, receipt=SignedReceipt(2, 9, 1_790_000_060_000, MINE))
    record.verdicts[VAL.public_key] = SignedVerdict(
        4, VAL.public_key, verdict, None if outcome is None else int(outcome)
    )
    found = record_document(record)
    text = "\n".join(record_lines(found, "run folder runs/x"))
    assert "run folder runs/x: 7 entries" in text
    assert "entry 2, signed 2026-09-21T14:14:20" in text
    assert "at step 9: verified, 300 tokens" in text
    assert "found it wrong (seed_mismatch), 3 tokens off: 300 tokens, worst margin 0.25 nats" in text
    assert told in text
    assert found["verdicts"] == [
        {
            "entry": 4,
            "validator": peer_id_of(VAL.public_key),
            "name": found["verdicts"][0]["name"],  # type: ignore[index]
            "passed": False,
            "reason": "seed_mismatch",
            "tokens": 300,
            "mismatched": 3,
            "worst_margin": 0.25,
            "outcome": None if outcome is None else int(outcome),
        }
    ]


def test_a_group_that_no_ledger_knows_is_told_as_such() -> None:
    text = "\n".join(record_lines(record_document(GroupRecord(height=1)), "the swarm"))
    assert "the swarm: 1 entry," in text
    assert "Receipt    none in these entries" in text
    assert "Verdicts   none" in text
    passed = GroupRecord(height=1, verdicts={VAL.public_key: SignedVerdict(0, VAL.public_key, verdict_on(MINE))})
    assert "found it right: 300 tokens" in "\n".join(record_lines(record_document(passed), "the swarm"))
