"""Delegations and revocations: signatures, ranges, text form, and the rule of ownership against a plain oracle."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import IdentityError, RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.delegation import (
    DAY_MS,
    Delegation,
    Revocation,
    Statement,
    label_of,
    parse_statement,
    sign_delegation,
    sign_revocation,
    statement_text,
)
from p2prl.protocol.identity import Identity
from p2prl.protocol.ownership import Ownership

ANN, BOB, EVE = (Identity(bytes([n]) * 16) for n in (1, 2, 3))
ATTIC, CELLAR = (Identity(bytes([n]) * 16).public_key for n in (8, 9))
NOW = 1_800_000_000_000
LONGEST_MS = int(limits.MAX_DELEGATION_LIFE_S * 1000)


def delegation(owner: Identity = ANN, machine: bytes = ATTIC, **changes: Any) -> Delegation:
    return sign_delegation(owner, machine, **{"serial": NOW, "expires_ms": NOW + DAY_MS, **changes})


def test_a_signed_statement_passes_and_any_other_term_does_not() -> None:
    statement = delegation(not_before_ms=5, name="attic-pc")
    statement.check()
    changed: dict[str, Any] = {
        "owner": EVE.public_key,
        "delegate": CELLAR,
        "serial": NOW - 1,
        "not_before_ms": 4,
        "expires_ms": NOW + DAY_MS - 1,
        "label": b"",
        "signature": bytes(64),
    }
    assert set(changed) == set(Delegation.__struct_fields__)
    for name, value in changed.items():
        with pytest.raises(RemoteProtocolError, match="not signed"):
            msgspec.structs.replace(statement, **{name: value}).check()


def test_a_revocation_covers_each_of_its_terms() -> None:
    statement = sign_revocation(ANN, ATTIC, serial=NOW, from_ms=NOW)
    statement.check()
    for name, value in {"owner": EVE.public_key, "delegate": CELLAR, "serial": NOW + 1, "from_ms": NOW - 1}.items():
        with pytest.raises(RemoteProtocolError, match="not signed"):
            msgspec.structs.replace(statement, **{name: value}).check()


@pytest.mark.parametrize(
    "terms",
    [
        {"not_before_ms": NOW + DAY_MS},
        {"not_before_ms": -1},
        {"expires_ms": NOW},
        {"expires_ms": NOW + LONGEST_MS + 1},
        {"expires_ms": 1 << 53, "serial": (1 << 53) - 1},
        {"serial": 0},
        {"serial": -1},
        {"serial": 1 << 53, "expires_ms": (1 << 53) + 1},
        {"label": bytes(15)},
        {"delegate": ANN.public_key},
        {"delegate": b"short"},
    ],
)
def test_impossible_terms_are_refused_before_the_signature_counts(terms: dict[str, Any]) -> None:
    draft = msgspec.structs.replace(delegation(), **terms)
    with pytest.raises(RemoteProtocolError, match=r"delegation: (?!not signed)"):
        draft.check()


def test_the_longest_and_the_shortest_life_are_allowed() -> None:
    delegation(expires_ms=NOW + LONGEST_MS).check()
    delegation(serial=1, not_before_ms=1, expires_ms=2).check()
    delegation(serial=(1 << 53) - 2, expires_ms=(1 << 53) - 1).check()


def test_a_day_of_owners_statements_has_24_hours() -> None:
    assert timedelta(milliseconds=DAY_MS) == timedelta(days=1)


def test_only_the_machine_sends_its_delegation_and_anybody_a_revocation() -> None:
    delegation().check_sent_by(ATTIC)
    with pytest.raises(RemoteProtocolError, match="not sent by the machine"):
        delegation().check_sent_by(ANN.public_key)
    sign_revocation(ANN, ATTIC, serial=NOW, from_ms=0).check_sent_by(EVE.public_key)


def test_a_label_is_the_same_for_its_owner_and_tells_nobody_else() -> None:
    assert label_of(ANN, "attic") == label_of(ANN, "attic") != label_of(BOB, "attic")
    assert label_of(ANN, "attic") != label_of(ANN, "cellar")


@pytest.mark.parametrize("statement", [delegation(name="x"), sign_revocation(ANN, ATTIC, serial=3, from_ms=0)])
def test_text_form(statement: Statement) -> None:
    text = statement_text(statement)
    assert parse_statement(f"  {text}\n") == statement
    assert "\n" not in text
    assert len(text) < 400
    for damaged in (text[:-1], text[:-8], text + "A", text.replace(":", ":A", 1), text[9:], text + "!" * 9_999):
        with pytest.raises(IdentityError):
            parse_statement(damaged)


def test_impossible_terms_are_not_signed() -> None:
    with pytest.raises(IdentityError):
        sign_delegation(ANN, ANN.public_key, serial=NOW, expires_ms=NOW + 1)
    with pytest.raises(IdentityError):
        sign_revocation(ANN, ATTIC, serial=NOW, from_ms=-1)


# --- the rule of ownership ------------------------------------------------------------------------------------------


def test_a_key_owns_itself_and_a_delegation_its_period() -> None:
    table = Ownership()
    assert table.owner_at(ATTIC, NOW) == ATTIC
    assert table.delegate(delegation(not_before_ms=NOW - 10, expires_ms=NOW + 10)) is None
    owners = [table.owner_at(ATTIC, NOW + offset) for offset in (-11, -10, 0, 9, 10)]
    assert owners == [ATTIC, ANN.public_key, ANN.public_key, ANN.public_key, ATTIC]
    assert table.owner_at(CELLAR, NOW) == CELLAR
    assert table.is_delegate(ATTIC)
    assert not table.is_delegate(CELLAR)


def test_a_revocation_holds_from_its_time_on_and_an_old_delegation_does_not_come_back() -> None:
    table = Ownership()
    table.delegate(delegation(serial=NOW))
    assert table.revoke(sign_revocation(ANN, ATTIC, serial=NOW + 5, from_ms=NOW + 3)) is None
    assert [table.owner_at(ATTIC, NOW + offset) for offset in (2, 3)] == [ANN.public_key, ATTIC]
    assert table.delegate(delegation(serial=NOW + 5, expires_ms=NOW + 2 * DAY_MS)) is None
    assert table.owner_at(ATTIC, NOW + 3) == ATTIC, "signed before the revocation"
    assert table.delegate(delegation(serial=NOW + 6)) is None
    assert table.owner_at(ATTIC, NOW + 3) == ANN.public_key, "signed after it"


def test_a_stolen_machine_key_moves_no_credited_work() -> None:
    table = Ownership()
    table.delegate(delegation(ANN))
    assert table.delegate(delegation(EVE, serial=NOW + 9, expires_ms=NOW + 9 * DAY_MS)) is None
    assert table.owner_at(ATTIC, NOW) == ANN.public_key
    table.revoke(sign_revocation(EVE, ATTIC, serial=1 << 52, from_ms=0))
    assert table.owner_at(ATTIC, NOW) == ANN.public_key
    assert table.owner_at(ATTIC, NOW + DAY_MS) == ATTIC


def test_another_owner_follows_when_the_first_has_revoked() -> None:
    table = Ownership()
    table.delegate(delegation(ANN))
    table.delegate(delegation(BOB))
    table.revoke(sign_revocation(ANN, ATTIC, serial=NOW, from_ms=NOW))
    assert [table.owner_at(ATTIC, NOW + offset) for offset in (-1, 0)] == [ANN.public_key, BOB.public_key]


def test_owners_are_not_followed_further() -> None:
    table = Ownership()
    table.delegate(delegation(ANN, BOB.public_key))
    table.delegate(delegation(BOB, ATTIC))
    assert table.owner_at(ATTIC, NOW) == BOB.public_key


def test_repetitions_are_refused_and_named() -> None:
    table = Ownership()
    assert table.revoke(sign_revocation(ANN, ATTIC, serial=NOW, from_ms=0)) == "revocation_of_nothing"
    table.delegate(delegation())
    assert table.delegate(delegation()) == "second_delegation"
    assert table.delegate(delegation(serial=NOW - 1, expires_ms=NOW + 2 * DAY_MS)) == "second_delegation"
    assert table.revoke(sign_revocation(EVE, ATTIC, serial=NOW, from_ms=0)) == "revocation_of_nothing"
    assert table.revoke(sign_revocation(ANN, ATTIC, serial=NOW, from_ms=9)) is None
    assert table.revoke(sign_revocation(ANN, ATTIC, serial=NOW, from_ms=9)) == "second_revocation"
    assert table.revoke(sign_revocation(ANN, ATTIC, serial=NOW - 1, from_ms=10)) == "second_revocation"
    assert table.revoke(sign_revocation(ANN, ATTIC, serial=NOW, from_ms=8)) is None


def test_counts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_DELEGATES_PER_OWNER", 2)
    monkeypatch.setattr(limits, "MAX_DELEGATES", 3)
    machines = [bytes([n]) * 32 for n in range(20, 25)]
    table = Ownership()
    assert [table.delegate(delegation(ANN, m)) for m in machines[:3]] == [None, None, "too_many_delegations"]
    assert table.delegate(delegation(ANN, machines[0], serial=NOW + 1)) is None, "a renewal is no new machine"
    assert table.delegate(delegation(BOB, machines[2])) is None
    assert table.delegate(delegation(BOB, machines[3])) == "too_many_delegations"


def test_statements_about_one_machine_are_bounded() -> None:
    table = Ownership()
    most = limits.MAX_DELEGATIONS_PER_DELEGATE
    found = [table.delegate(delegation(serial=NOW + n)) for n in range(most + 1)]
    assert found == [None] * most + ["too_many_delegations"]
    most = limits.MAX_REVOCATIONS_PER_PAIR
    steps = [sign_revocation(ANN, ATTIC, serial=NOW + n, from_ms=NOW + n) for n in range(most + 1)]
    assert [table.revoke(step) for step in steps] == [None] * most + ["too_many_revocations"]
    assert table.revoke(sign_revocation(ANN, ATTIC, serial=NOW + 99, from_ms=0)) is None, (
        "one that voids all the others"
    )


_ints = st.integers(-(1 << 63), (1 << 64) - 1)
_keys = st.binary(max_size=40)


@given(_keys, _keys, _ints, _ints, _ints, st.binary(max_size=20), st.binary(max_size=70))
def test_strange_terms_raise_only_protocol_errors(
    owner: bytes, machine: bytes, serial: int, begin: int, end: int, label: bytes, signature: bytes
) -> None:
    for statement in (
        Delegation(owner, machine, serial, begin, end, label, signature),
        Revocation(owner, machine, serial, begin, signature),
    ):
        with pytest.raises(RemoteProtocolError):
            statement.check()


@given(st.integers(0, 200), st.integers(1, 127))
def test_one_changed_character_of_the_text_is_refused(place: int, shift: int) -> None:
    text = statement_text(delegation(name="attic"))
    place %= len(text)
    changed = text[:place] + chr((ord(text[place]) + shift) % 128) + text[place + 1 :]
    with pytest.raises(IdentityError):
        parse_statement(changed)


_OWNERS = (ANN, BOB, EVE)
_times = st.integers(0, 30)
_delegations = st.builds(
    lambda owner, serial, begin, length: ("d", owner, serial, begin, begin + length),
    st.integers(0, 2), st.integers(1, 9), _times, st.integers(1, 20),
)  # fmt: skip
_revocations = st.builds(
    lambda owner, serial, at: ("r", owner, serial, at, 0), st.integers(0, 2), st.integers(1, 9), _times
)


@given(st.lists(st.one_of(_delegations, _revocations), max_size=8), _times)
def test_ownership_equals_a_plain_reading_of_the_rule(history: list[tuple[str, int, int, int, int]], at: int) -> None:
    table, taken = Ownership(), []
    for kind, owner, serial, begin, end in history:
        if kind == "d":
            draft = Delegation(_OWNERS[owner].public_key, ATTIC, serial, begin, end, b"", b"")
            rule = table.delegate(draft)
        else:
            rule = table.revoke(Revocation(_OWNERS[owner].public_key, ATTIC, serial, begin, b""))
        if rule in (None, "second_revocation"):  # one that says no more than an earlier one changes nothing
            taken.append((kind, owner, serial, begin, end))
    expected = ATTIC
    for kind, owner, serial, begin, end in taken:
        voided = any(k == "r" and o == owner and s >= serial and at >= b for k, o, s, b, _ in taken)
        if kind == "d" and begin <= at < end and not voided:
            expected = _OWNERS[owner].public_key
            break
    assert table.owner_at(ATTIC, at) == expected
