"""Groups and their receipts as lines for people and as JSON values for scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from p2prl.cli.views.receipt_advice import advice
from p2prl.plain_text import cleaned, counted
from p2prl.protocol.identity import peer_id_of
from p2prl.protocol.ledger_messages import CheckOutcome, ReceiptState
from p2prl.quantity_text import credit
from p2prl.scoreboard.display_names import display_name
from p2prl.scoreboard.ledger.credit import credit_of
from p2prl.time_text import moment, time_text

if TYPE_CHECKING:
    from p2prl.client.evidence import CheckedEvidence
    from p2prl.client.own_groups import OwnGroup
    from p2prl.scoreboard.group_record import GroupRecord, SignedVerdict

DIGITS = 12
"""Digits of a group's name in a table: one in 2^48 groups shares them."""

_OUTCOMES = {
    None: "not compared by the learner yet",
    int(CheckOutcome.AGREED): "the learner's own replay agrees",
    int(CheckOutcome.CONTRADICTED): "it contradicts the learner's own replay: a third validator decides",
    int(CheckOutcome.FAILED): "its numbers are not those of a replay, so it does not count",
    int(CheckOutcome.UNCLEAR): "it differs from the learner's by what rounding explains",
}

_STATES = {
    int(ReceiptState.VERIFIED): "verified",
    int(ReceiptState.CREDITED_BY_SAMPLING): "credited by sampling",
    int(ReceiptState.REJECTED): "rejected",
    int(ReceiptState.EXPIRED): "expired",
}


def group_document(group: OwnGroup, seat: str, *, parameters: int, in_escrow: bool) -> dict[str, object]:
    """One group as a JSON value."""
    receipt = group.receipt
    tokens = _credited(group)
    return {
        "group": group.digest.hex(),
        "seat": seat,
        "state": group.state,
        "reason": group.reason,
        "version": group.version,
        "slot": group.slot,
        "sampled_at": time_text(1000 * group.created),
        "sampled_tokens": group.tokens,
        "own_reward": group.reward,
        "credited_tokens": tokens,
        "credit": credit_of(tokens, parameters),
        "in_escrow": in_escrow,
        "learner_step": None if receipt is None else receipt.step,
        "judged_at": None if receipt is None else time_text(receipt.sent_ms),
        "learner_reward": None if receipt is None or not tokens else receipt.reward,
        "kept": group.is_kept,
    }


def table_lines(rows: list[dict[str, Any]]) -> list[str]:
    """Groups as a table, one line each."""
    several = len({row["seat"] for row in rows}) > 1
    lines = [
        f"{'group':<{DIGITS}}  {'sampled (UTC)':<16}  {'version':>7}  {'slot':>6}  {'state':<9}  {'tokens':>7}  reason"
    ]
    for row in rows:
        seat = f"  ({row['seat']})" if several else ""
        sampled = row["sampled_at"][:16].replace("T", " ")
        lines.append(
            f"{row['group'][:DIGITS]}  {sampled}  {row['version']:>7}  {row['slot']:>6}"
            f"  {row['state']:<9}  {row['credited_tokens']:>7,}  {row['reason'] or '–'}{seat}"
        )
    return lines


def explain_lines(group: OwnGroup, document: dict[str, Any], escrow_groups: int) -> list[str]:
    """Why a group earned what it earned, by what this machine knows."""
    why, what_to_do = advice(group.state, group.reason)
    scored = "" if group.reward is None else f", mean reward {group.reward:.3f} by this machine's own scoring"
    slot = f"slot {group.slot} of version {group.version}, {counted(group.tokens, 'token')}"
    lines = [
        f"Group      {document['group']}",
        f"Sampled    {moment(time_text(1000 * group.created))}: {slot}{scored}",
        f"State      {group.state}{f' ({group.reason})' if group.reason else ''}",
        f"Why        {why}",
        f"To do      {what_to_do}",
    ]
    if (receipt := group.receipt) is not None:
        figures = ""
        if document["credited_tokens"]:
            figures = f", {counted(receipt.completions, 'completion')}, mean reward {receipt.reward:.3f}"
        lines.append(
            f"Judged     {moment(time_text(receipt.sent_ms))} by the run's learner, at its step {receipt.step}{figures}"
        )
    if document["credited_tokens"]:
        escrow = ""
        if document["in_escrow"]:
            escrow = f"; in escrow until {escrow_groups} further groups are credited or the run ends"
        tokens = counted(document["credited_tokens"], "token")
        lines.append(f"Credit     {tokens}, {credit(document['credit'])} on the board{escrow}")
    else:
        lines.append("Credit     none")
    return lines


def record_document(record: GroupRecord) -> dict[str, object]:
    """What a ledger says about a group, as a JSON value."""
    signed = record.receipt
    return {
        "entries": record.height,
        "receipt": None
        if signed is None
        else {
            "entry": signed.entry,
            "step": signed.step,
            "signed_at": time_text(signed.sent_ms),
            "state": _STATES.get(signed.receipt.state, "unknown"),
            "reason": signed.receipt.reason,
            "tokens": signed.receipt.tokens,
            "reward": signed.receipt.reward,
        },
        "verdicts": [_verdict_document(each) for each in record.verdicts.values()],
    }


def record_lines(document: dict[str, Any], source: str) -> list[str]:
    """What a ledger says about a group."""
    receipt = document["receipt"]
    lines = [
        f"Ledger     {source}: {counted(document['entries'], 'entry', 'entries')}, every signature and link checked"
    ]
    if receipt is None:
        lines.append("Receipt    none in these entries: the group is not judged yet, or its receipt came later")
    else:
        reason = f" ({receipt['reason']})" if receipt["reason"] else ""
        lines.append(
            f"Receipt    entry {receipt['entry']}, signed {receipt['signed_at']} at step {receipt['step']}:"
            f" {receipt['state']}{reason}, {counted(receipt['tokens'], 'token')}"
        )
    if not document["verdicts"]:
        lines.append("Verdicts   none: no validator drew this group for a replay of its own")
    for each in document["verdicts"]:
        found = "right" if each["passed"] else f"wrong ({each['reason']}), {counted(each['mismatched'], 'token')} off"
        lines.append(
            f"Verdict    {each['name']} …{each['validator'][-8:]} found it {found}: {counted(each['tokens'], 'token')},"
            f" worst margin {each['worst_margin']:.3g} nats; {_OUTCOMES[each['outcome']]}"
        )
    return lines


def _credited(group: OwnGroup) -> int:
    """Tokens credited: by the receipt, or as sampled for groups settled by an older release."""
    if group.state != "verified":
        return 0
    return group.tokens if group.receipt is None else group.receipt.tokens


def _verdict_document(signed: SignedVerdict) -> dict[str, object]:
    verdict = signed.verdict
    return {
        "entry": signed.entry,
        "validator": peer_id_of(signed.validator),
        "name": display_name(signed.validator),
        "passed": verdict.passed,
        "reason": verdict.reason,
        "tokens": verdict.tokens,
        "mismatched": verdict.mismatched,
        "worst_margin": verdict.worst_margin,
        "outcome": None if signed.outcome is None else int(signed.outcome),
    }


_OWN_REPLAYS = {
    "right": "the volunteer's replay found it right",
    "wrong": "the volunteer's replay found it wrong too",
    "undecided": "the volunteer's replay cannot check this reason",
    "impossible": "the volunteer could not replay it",
}


def evidence_document(evidence: CheckedEvidence) -> dict[str, Any]:
    """Checked evidence of refused work as a JSON value."""
    return {
        "run": evidence.name,
        "run_id": evidence.run.hex(),
        "learner": peer_id_of(evidence.learner),
        "judged": evidence.judged,
        "refused": evidence.refused,
        "groups": [
            {
                "group": each.group.hex(),
                "volunteer": peer_id_of(each.volunteer),
                "version": each.version,
                "slot": each.slot,
                "tokens": each.tokens,
                "reason": each.reason,
                "learner_step": each.step,
                "signed_at": time_text(each.signed_ms),
                "replay": each.replay if each.replay in _OWN_REPLAYS else "",
            }
            for each in evidence.refusals
        ],
    }


def evidence_lines(document: dict[str, Any]) -> list[str]:
    """The same for people. What the learner signed comes first; then what the volunteer itself claims."""
    groups = document["groups"]
    lines = [
        f"Run        {document['run']}",
        f"Learner    {document['learner']}",
        f"Signed     {counted(len(groups), 'group')} with the learner's rejection of each; every signature is right",
        f"Counted    the volunteer says {document['refused']:,} of {document['judged']:,} judged groups were rejected",
        "",
    ]
    for each in groups:
        replay = _OWN_REPLAYS.get(each["replay"])
        said = f"; {replay}" if replay else ""
        lines.append(
            f"{each['group'][:DIGITS]}  version {each['version']}, slot {each['slot']}: {cleaned(each['reason'])}, "
            f"signed at step {each['learner_step']}, {each['signed_at']}{said}"
        )
    return [*lines, "", "Who has the weights of these versions can replay the groups: signatures say who said what."]
