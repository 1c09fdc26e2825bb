"""Memberships: signatures, names, text form, and the rule of teams against a plain oracle."""

from __future__ import annotations

import unicodedata
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import ConfigError, IdentityError, RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.delegation import DAY_MS, sign_delegation
from p2prl.protocol.identity import Identity
from p2prl.protocol.membership_statements import (
    Membership,
    TeamName,
    invite_text,
    membership_text,
    parse_invite,
    parse_membership,
    sign_membership,
    sign_team_name,
)
from p2prl.protocol.ownership import Ownership
from p2prl.protocol.team_membership import Teams
from p2prl.protocol.typed_names import check_typed_name, typed_name

ANN, BOB, EVE, RED, BLUE = (Identity(bytes([n]) * 16) for n in (1, 2, 3, 4, 5))
ATTIC = Identity(bytes([8]) * 16)
NOW = 1_800_000_000_000


def name_of(team: Identity = RED, name: str = "Red Pandas", *, serial: int = NOW) -> TeamName:
    return sign_team_name(team, name, serial=serial)


def test_a_signed_membership_passes_and_any_other_term_does_not() -> None:
    joined = sign_membership(ANN, name_of(), serial=NOW)
    joined.check()
    joined.check_sent_by(EVE.public_key)
    sign_membership(ANN, None, serial=NOW).check()
    changed: dict[str, Any] = {
        "member": EVE.public_key,
        "serial": NOW + 1,
        "team": name_of(BLUE),
        "signature": bytes(64),
    }
    assert set(changed) == set(Membership.__struct_fields__)
    for field, value in changed.items():
        with pytest.raises(RemoteProtocolError, match="not signed by its member"):
            msgspec.structs.replace(joined, **{field: value}).check()
    with pytest.raises(RemoteProtocolError, match="not signed by its member"):
        msgspec.structs.replace(joined, team=None).check()


def test_a_name_covers_each_of_its_terms() -> None:
    name = name_of()
    name.check()
    changed: dict[str, Any] = {"team": BLUE.public_key, "name": "Red Panda", "serial": NOW + 1, "signature": bytes(64)}
    assert set(changed) == set(TeamName.__struct_fields__)
    for field, value in changed.items():
        forged = msgspec.structs.replace(name, **{field: value})
        with pytest.raises(RemoteProtocolError, match="not signed by its team"):
            forged.check()
        with pytest.raises(IdentityError, match="not signed by its team"):
            sign_membership(ANN, forged, serial=NOW)


@pytest.mark.parametrize("serial", [0, -1, 1 << 53, 1 << 64])
def test_impossible_terms_are_refused(serial: int) -> None:
    with pytest.raises(IdentityError, match="serial out of range"):
        name_of(serial=serial)
    with pytest.raises(IdentityError, match="serial out of range"):
        sign_membership(ANN, None, serial=serial)
    with pytest.raises(IdentityError, match="no member of itself"):
        sign_membership(RED, name_of(), serial=NOW)
    for short in (TeamName(b"short", "x", 1, b""), Membership(b"short", 1, None, b"")):
        with pytest.raises(RemoteProtocolError, match="32 bytes"):
            short.check()


def test_text_forms() -> None:
    invite, line = invite_text(name_of()), membership_text(sign_membership(ANN, name_of(), serial=NOW))
    assert parse_invite(f" {invite}\n") == name_of()
    assert parse_membership(f" {line}\n") == sign_membership(ANN, name_of(), serial=NOW)
    longest = membership_text(sign_membership(ANN, name_of(name="\U00020000" * 24), serial=(1 << 53) - 1))
    assert parse_membership(longest).serial == (1 << 53) - 1
    for text, read in ((invite, parse_invite), (line, parse_membership)):
        assert "\n" not in text
        for damaged in (text[:-1], text[:-8], text + "A", text.replace(":", ":A", 1), text[6:], text + "!" * 9_999):
            with pytest.raises(IdentityError):
                read(damaged)


# --- names ----------------------------------------------------------------------------------------------------------

GOOD = (
    "A",
    "Red Pandas",
    "7",
    "L'Équipe",
    "Команда мира",
    "量子チーム",
    "हिन्दी दल",
    "Éire & Co.",
    "a" * 24,
    "v1_2-3!",
    "St. Ives",
    "z\u0316\u0316",
    "東京 Tokyo かな カナ",
    "서울 Team 7",
    "Ωμέγα",
    "צוות A",
)
BAD = (
    "", "a" * 25, " a", "a ", "a  b", "a\tb", "a\nb", "<b>x", 'a"b', "a/b", "a:b", "a@b", "evil.com", "www.evil",
    "a..b", "...", "-!", "a\u200bb", "a\u202eb", "a\u00a0b", "\u3164", "a\u3164", "a\ufe0f", "\u0301a", "ﬁn", "Ａ",
    "a\u0301", "z\u0316\u0316\u0316", "z\u0351", "a\x00", "\U0001f600", "a#b", "a`b", "[a](b)", "a=b",
    "a%b", "a\ud800", "\u2024a",
    "Red P\u0430ndas", "Команда X", "\u039fmega", "Ωмега", "A \u13aa", "\u0585ne", "x\u10e7",
)  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_names_that_strangers_are_shown(name: str) -> None:
    check_typed_name(name)
    assert typed_name(f"  {name} ") == name


@pytest.mark.parametrize("name", BAD)
def test_names_that_nobody_is_shown(name: str) -> None:
    with pytest.raises(RemoteProtocolError, match="name: it"):
        check_typed_name(name)


def test_a_typed_text_becomes_the_one_form_of_its_name() -> None:
    assert typed_name("Ａ\u00a0 ﬁn\te\u0301") == "A fin é"
    with pytest.raises(ConfigError, match="will not do"):
        typed_name("evil.com")


@given(st.text(max_size=30))
def test_what_a_person_may_type_every_reader_accepts(text: str) -> None:
    try:
        name = typed_name(text)
    except ConfigError:
        return
    check_typed_name(name)
    assert typed_name(name) == name
    assert unicodedata.normalize("NFKC", name) == name
    assert not set(name) & set('<>"/:@#%=`[]()\\')


# --- the rule -------------------------------------------------------------------------------------------------------


def table(*machines: tuple[Identity, Identity]) -> Teams:
    """A table in which these (owner, machine) pairs are delegated."""
    ownership = Ownership()
    for owner, machine in machines:
        ownership.delegate(sign_delegation(owner, machine.public_key, serial=NOW, expires_ms=NOW + DAY_MS))
    return Teams(ownership)


def take(teams: Teams, member: Identity, team: TeamName | None, serial: int, after_ms: int = 0) -> str | None:
    return teams.take(sign_membership(member, team, serial=serial), member.public_key, after_ms=after_ms)


def test_only_the_member_and_its_machines_speak_for_it() -> None:
    teams = table((ANN, ATTIC))
    joined = sign_membership(ANN, name_of(), serial=1)
    assert teams.take(joined, EVE.public_key, after_ms=0) == "membership_of_another"
    assert teams.team_of(ANN.public_key) is None
    assert teams.take(joined, ATTIC.public_key, after_ms=0) is None
    assert teams.team_of(ANN.public_key) == RED.public_key
    of_machine = sign_membership(ATTIC, name_of(BLUE), serial=1)
    assert teams.take(of_machine, ANN.public_key, after_ms=0) == "membership_of_another"


def test_joining_moving_and_leaving_decide_about_later_work_only() -> None:
    teams, ann = table(), ANN.public_key
    assert take(teams, ANN, name_of(), 1, after_ms=10) is None
    assert take(teams, ANN, name_of(BLUE), 2, after_ms=20) is None
    assert take(teams, ANN, None, 3, after_ms=30) is None
    found = [teams.team_at(ann, at) for at in (0, 10, 11, 20, 21, 30, 31, 99)]
    red, blue = RED.public_key, BLUE.public_key
    assert found == [None, None, red, red, blue, blue, None, None]
    assert teams.team_of(ann) is None
    assert teams.was_member(ann)
    assert teams.members() == {red: frozenset(), blue: frozenset()}


def test_what_says_nothing_new_is_ignored() -> None:
    teams = table()
    assert take(teams, ANN, None, 5) == "second_membership", "there is nothing to leave"
    assert take(teams, ANN, name_of(serial=7), 5) is None
    assert take(teams, ANN, name_of(BLUE), 5) == "second_membership", "the serial is not larger"
    assert take(teams, ANN, name_of(serial=7, name="Same"), 6) == "second_membership"
    assert take(teams, BOB, name_of(serial=6, name="Old"), 1) is None
    assert teams.name_of(RED.public_key).name == "Red Pandas", "an old invite does not bring back an old name"
    assert take(teams, ANN, name_of(serial=8, name="New"), 6) is None
    assert teams.name_of(RED.public_key).name == "New"
    assert teams.members()[RED.public_key] == {ANN.public_key, BOB.public_key}


def test_counts_are_bounded_and_nobody_is_held_in_a_team(monkeypatch: pytest.MonkeyPatch) -> None:
    most = limits.MAX_MEMBERSHIPS_PER_MEMBER
    teams = table()
    found = [take(teams, ANN, name_of((RED, BLUE)[serial % 2]), serial) for serial in range(1, most + 1)]
    assert found == [None] * (most - 1) + ["too_many_memberships"]
    assert take(teams, ANN, None, most) is None
    assert take(teams, ANN, name_of(), most + 1) == "too_many_memberships"
    monkeypatch.setattr(limits, "MAX_MEMBERS", 2)
    assert take(teams, BOB, name_of(), 1) is None
    assert take(teams, EVE, name_of(), 1) == "too_many_memberships"
    assert take(teams, BOB, name_of(BLUE), 2) is None, "a member that is known may move"


def test_allies_share_an_owner_or_a_team_at_the_time() -> None:
    teams = table((ANN, ATTIC))
    at, attic, ann, bob, eve = NOW + 5, *(key.public_key for key in (ATTIC, ANN, BOB, EVE))
    assert teams.are_allied(attic, ann, at)
    assert not teams.are_allied(bob, eve, at), "two without a team"
    take(teams, ANN, name_of(), 1)
    assert not teams.are_allied(attic, bob, at)
    take(teams, BOB, name_of(), 1, after_ms=at)
    assert not teams.are_allied(attic, bob, at), "not yet"
    assert teams.are_allied(attic, bob, at + 1)
    take(teams, EVE, name_of(BLUE), 1)
    assert not teams.are_allied(attic, eve, at + 1)


_KEYS = (ANN, BOB, EVE)
_NAMES = {team: TeamName(team.public_key, "x", 1, b"") for team in (RED, BLUE)}
_steps = st.tuples(
    st.integers(0, 2), st.integers(1, 9), st.sampled_from([None, RED, BLUE]), st.integers(0, 3)
)  # fmt: skip


@given(st.lists(_steps, max_size=10), st.integers(0, 2), st.integers(0, 31))
def test_teams_equal_a_plain_reading_of_the_rule(
    history: list[tuple[int, int, Identity | None, int]], member: int, at: int
) -> None:
    teams, clock = table(), 0
    taken: list[tuple[int, int, Identity | None, int]] = []
    for who, serial, team, wait in history:
        clock += wait
        name = None if team is None else _NAMES[team]
        rule = teams.take(Membership(_KEYS[who].public_key, serial, name, b""), _KEYS[who].public_key, after_ms=clock)
        mine = [step for step in taken if step[0] == who]
        old = bool(mine) and serial <= max(step[1] for step in mine)
        now_in = mine[-1][2] if mine else None
        assert (rule is not None) == (old or team is now_in)
        if rule is None:
            taken.append((who, serial, team, clock))
    before = [team for who, _, team, after in taken if who == member and after < at]
    expected = before[-1] if before else None
    assert teams.team_at(_KEYS[member].public_key, at) == (expected.public_key if expected else None)


_ints = st.integers(-(1 << 63), (1 << 64) - 1)


@given(st.binary(max_size=40), _ints, st.binary(max_size=40), st.text(max_size=30), _ints, st.binary(max_size=70))
def test_strange_terms_raise_only_protocol_errors(
    member: bytes, serial: int, team: bytes, name: str, named: int, signature: bytes
) -> None:
    for statement in (
        TeamName(team, name, named, signature),
        Membership(member, serial, TeamName(team, name, named, signature), signature),
        Membership(member, serial, None, signature),
    ):
        with pytest.raises(RemoteProtocolError):
            statement.check()
