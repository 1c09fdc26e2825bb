"""Kind numbers, and the values that groups, receipts and verdicts may hold."""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Iterator

import msgspec
import pytest

from p2prl import protocol
from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.envelope import SIGNED_MESSAGES
from p2prl.protocol.kinds import TOMBSTONES, Kind
from p2prl.protocol.ledger_messages import Receipt, Receipts, ReceiptState, Verdict, VerdictCheck, VerdictChecks
from p2prl.protocol.link_messages import LINK_MESSAGES
from p2prl.protocol.peer_messages import PeerRecord
from p2prl.protocol.rollout_group import Completion, RolloutGroup
from p2prl.protocol.wire_codec import Wire
from p2prl_lab.testing.protocol_swarm import group_of

USED = {
    "HELLO": 1, "OFFER": 2, "WANT": 3, "PUSH": 4, "HAVE": 5, "CHUNK_REQUEST": 6, "CHUNK": 7, "CHUNK_REFUSED": 8,
    "BLOB_QUERY": 9, "LEDGER_QUERY": 10, "LEDGER_PAGE": 11, "LINK_RATES": 12, "CHUNK_GRANT": 13, "GRANT_DECLINED": 14,
    "CHUNK_CANCEL": 15, "MEETING_REQUEST": 16, "MEETING": 17, "PADDING": 18, "RUN_MANIFEST": 32, "POLICY_MANIFEST": 33,
    "PEER_RECORD": 34, "ROLLOUT_GROUP": 35, "STORAGE_RECEIPT": 36, "RECEIPTS": 37, "VERDICT": 38, "LEDGER_HEAD": 39,
    "POLICY_HEAD": 40, "INTRODUCTION": 41, "GROUP_HEADER": 42,
    "DELEGATION": 43, "REVOCATION": 44, "VERDICT_CHECKS": 45,
    "COUNTERSIGNATURE": 46, "MEMBERSHIP": 47, "STANDBY": 48,
    "FOLLOW_QUERY": 19, "FOLLOW_PIECE": 20,
}  # fmt: skip
"""Every number ever used. A line is never edited: a retired kind moves to `TOMBSTONES` and stays here."""


def test_numbers_are_never_reused() -> None:
    current = {kind.name: int(kind) for kind in Kind}
    for name, number in USED.items():
        assert current.get(name) == number or number in TOMBSTONES, name
    assert TOMBSTONES.isdisjoint(current.values())
    assert current.keys() - USED.keys() == set(), "a new kind: add its line here"
    assert len(set(USED.values())) == len(USED)


def test_families_keep_their_ranges() -> None:
    assert set(LINK_MESSAGES) | set(SIGNED_MESSAGES) == set(Kind)
    assert all(1 <= kind <= 31 for kind in LINK_MESSAGES)
    assert all(32 <= kind <= 127 for kind in SIGNED_MESSAGES)


GOOD = group_of(3)


def completion(**changes: object) -> tuple[Completion, ...]:
    return (msgspec.structs.replace(GOOD.completions[0], **changes),)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": -1},
        {"version": 1 << 48},
        {"slot": -1},
        {"slot": 1 << 32},
        {"policy": bytes(31)},
        {"task": ""},
        {"task": "t" * (limits.MAX_NAME_CHARS + 1)},
        {"prompt": b""},
        {"prompt": bytes(5)},
        {"prompt": bytes(4 * limits.MAX_PROMPT_TOKENS + 4)},
        {"completions": ()},
        {"completions": GOOD.completions[:1] * (limits.MAX_GROUP_SIZE + 1)},
        {"completions": completion(tokens=b"")},
        {"completions": completion(tokens=bytes(6))},
        {"completions": completion(tokens=bytes(8))},
        {"completions": completion(logprobs=b"")},
        {"completions": completion(reward=math.nan)},
        {"completions": completion(reward=math.inf)},
        {
            "completions": completion(
                tokens=bytes(4 * limits.MAX_COMPLETION_TOKENS + 4), logprobs=bytes(2 * limits.MAX_COMPLETION_TOKENS + 2)
            )
        },
        {"engine": msgspec.structs.replace(GOOD.engine, engine="\x1b[2J")},
        {"engine": msgspec.structs.replace(GOOD.engine, device="d" * (limits.MAX_NAME_CHARS + 1))},
        {"seconds": math.inf},
    ],
)
def test_impossible_groups_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError):
        msgspec.structs.replace(GOOD, **changes).check()


def test_groups_at_the_limits_pass() -> None:
    size = limits.MAX_COMPLETION_TOKENS
    largest: RolloutGroup = msgspec.structs.replace(
        GOOD,
        version=(1 << 48) - 1,
        slot=(1 << 32) - 1,
        task="t" * limits.MAX_NAME_CHARS,
        prompt=bytes(4 * limits.MAX_PROMPT_TOKENS),
        completions=completion(tokens=bytes(4 * size), logprobs=bytes(2 * size)) * limits.MAX_GROUP_SIZE,
    )
    largest.check()
    GOOD.check()


def test_peer_record_addresses() -> None:
    good = "/ip4/1.2.3.4/tcp/1"
    PeerRecord(1, (good,) * limits.MAX_ADDRESSES, 0, 0).check()
    for addresses in ((good,) * (limits.MAX_ADDRESSES + 1), ("a" * (limits.MAX_ADDRESS_CHARS + 1),), ("/ip4/\n",)):
        with pytest.raises(RemoteProtocolError):
            PeerRecord(1, addresses, 0, 0).check()


RECEIPT = Receipt(bytes(32), bytes(32), 3, 4, int(ReceiptState.REJECTED), "bad_tokens", 0, 0, 0.0)
VERDICT = Verdict(bytes(32), bytes(32), 3, False, "seed_mismatch", 9, 2, 0.5)
OUTCOMES = [
    {"group": bytes(31)},
    {"peer": b""},
    {"version": -1},
    {"version": 1 << 48},
    {"tokens": -1},
    {"tokens": 1 << 40},
    {"reason": "\x1b]0;owned\x07"},
    {"reason": "x" * 10_000},
]


@pytest.mark.parametrize(
    "changes",
    [
        *OUTCOMES,
        {"slot": -1},
        {"slot": 1 << 32},
        {"completions": -1},
        {"completions": limits.MAX_GROUP_SIZE + 1},
        {"state": 0},
        {"state": 99},
        {"reward": math.nan},
        {"reward": math.inf},
    ],
)
def test_impossible_receipts_are_refused(changes: dict[str, object]) -> None:
    Receipts(0, (RECEIPT,)).check()
    with pytest.raises(RemoteProtocolError):
        Receipts(0, (RECEIPT, msgspec.structs.replace(RECEIPT, **changes))).check()


@pytest.mark.parametrize(
    "receipts", [Receipts(-1, ()), Receipts(0, (RECEIPT,) * (limits.MAX_RECEIPTS_PER_MESSAGE + 1))]
)
def test_impossible_batches_are_refused(receipts: Receipts) -> None:
    with pytest.raises(RemoteProtocolError):
        receipts.check()


@pytest.mark.parametrize(
    "changes",
    [
        *OUTCOMES,
        {"passed": True},
        {"reason": ""},
        {"mismatched": -1},
        {"mismatched": 10},
        {"worst_margin": math.inf},
        {"worst_margin": math.nan},
        {"probes": b"x"},
        {"probes": bytes(2 * limits.MAX_VERDICT_PROBES + 2)},
    ],
)
def test_impossible_verdicts_are_refused(changes: dict[str, object]) -> None:
    VERDICT.check()
    msgspec.structs.replace(VERDICT, passed=True, reason="").check()
    msgspec.structs.replace(VERDICT, probes=bytes(2 * limits.MAX_VERDICT_PROBES)).check()
    with pytest.raises(RemoteProtocolError):
        msgspec.structs.replace(VERDICT, **changes).check()


CHECK = VerdictCheck(bytes(32), bytes(32), 1, 9)


@pytest.mark.parametrize(
    "changes",
    [{"validator": b""}, {"group": bytes(31)}, {"outcome": 0}, {"outcome": 5}, {"tokens": -1}, {"tokens": 1 << 40}],
)
def test_impossible_checks_of_verdicts_are_refused(changes: dict[str, object]) -> None:
    VerdictChecks((CHECK,) * limits.MAX_VERDICT_CHECKS_PER_MESSAGE).check()
    with pytest.raises(RemoteProtocolError):
        VerdictChecks((CHECK, msgspec.structs.replace(CHECK, **changes))).check()


def test_a_batch_of_checks_is_bounded() -> None:
    with pytest.raises(RemoteProtocolError):
        VerdictChecks((CHECK,) * (limits.MAX_VERDICT_CHECKS_PER_MESSAGE + 1)).check()


def kinds_of(base: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    """Every struct below `base`."""
    for kind in base.__subclasses__():
        yield kind
        yield from kinds_of(kind)


def test_every_struct_of_the_wire_is_a_frozen_array_without_further_fields() -> None:
    for module in pkgutil.iter_modules(protocol.__path__):
        importlib.import_module(f"{protocol.__name__}.{module.name}")
    kinds = [kind for kind in kinds_of(Wire) if kind.__module__.startswith(protocol.__name__)]
    assert len(kinds) > 40
    every: list[type[msgspec.Struct]] = [Wire, *kinds]
    for kind in every:
        config = kind.__struct_config__
        assert (config.frozen, config.array_like, config.forbid_unknown_fields) == (True, True, True), kind
