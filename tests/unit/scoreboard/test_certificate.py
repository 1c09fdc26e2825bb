"""Certificates: signed by the right keys, carried by the picture, and held to the ledger fact by fact."""

from __future__ import annotations

import json
import time
from dataclasses import fields, replace
from typing import Any

import pytest

from p2prl.errors import ConfigError, IdentityError, IntegrityError
from p2prl.protocol.digests import digest
from p2prl.protocol.identity import Identity
from p2prl.scoreboard.certificate import Certificate, Signed, issue, read, recount
from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.scoreboard.web.certificate_picture import certificate_pdf, certificate_png, certificate_text
from p2prl_lab.testing.sample_ledgers import START_S, LedgerWriter, MemorySource, identity, receipt, sample_run

ANN, BOB, LEARNER = identity("ann"), identity("bob"), identity("learner")


def ledger() -> LedgerWriter:
    writer = LedgerWriter()
    writer.receipts(0, receipt(0, ANN), receipt(1, ANN, tokens=50), receipt(2, BOB))
    writer.receipts(1, receipt(3, BOB, state=3, reason="seed_mismatch", tokens=0, completions=0, reward=0.0))
    return writer


SNAPSHOT = MemorySource(ledger()).snapshot()


def signed(by: Identity = ANN, of: Identity = ANN, snapshot: Snapshot = SNAPSHOT) -> Signed:
    return issue(snapshot, of.peer_id, by, now_ms=1_790_000_000_000)


@pytest.mark.parametrize("signer", [ANN, LEARNER])
def test_what_was_signed_is_read_from_the_picture_and_confirmed_by_the_ledger(signer: Identity) -> None:
    made = signed(signer)
    assert (made.certificate.verified_groups, made.certificate.verified_tokens) == (2, 150)
    for picture in (certificate_png(made), certificate_pdf(made)):
        text = certificate_text(picture)
        assert text == made.text
        found = read(text)
        assert found.certificate == made.certificate
        recount(found.certificate, SNAPSHOT)


def test_it_says_from_which_day_to_which_the_work_was_done() -> None:
    writer = ledger()
    writer.now += 3 * 86_400
    writer.receipts(2, receipt(4, ANN))
    writer.now += 86_400
    writer.receipts(3, receipt(5, BOB), receipt(6, ANN, state=4, tokens=0, completions=0))
    snapshot = MemorySource(writer).snapshot()
    made = signed(snapshot=snapshot).certificate
    days = [time.strftime("%Y-%m-%d", time.gmtime(START_S + days * 86_400)) for days in (0, 3)]
    assert [made.worked_from, made.worked_until] == days, "expired work is none"
    recount(made, snapshot)


def test_a_certificate_of_an_earlier_release_is_still_one() -> None:
    """Its facts had no days, and its signature covers those that it had."""
    old = {
        name: value
        for name, value in json.loads(signed().text).items()
        if name not in ("worked_from", "worked_until", "signature")
    }
    facts = digest("p2prl/certificate-signature/v1", *(f"{name}={value!r}".encode() for name, value in old.items()))
    found = read(json.dumps({**old, "signature": ANN.sign_raw(facts).hex()})).certificate
    recount(found, SNAPSHOT)
    assert (found.worked_from, found.worked_until) == ("", "")
    assert certificate_png(Signed(found, "{}", "00"))


@pytest.mark.parametrize(("first", "last"), [("2020-01-01", ""), ("", "2020-01-01")])
def test_a_day_without_the_other_is_held_to_the_ledger(first: str, last: str) -> None:
    with pytest.raises(IntegrityError, match=r"worked (from|until) differs"):
        recount(replace(signed().certificate, worked_from=first, worked_until=last), SNAPSHOT)


def test_a_strangers_key_signs_nothing() -> None:
    with pytest.raises(IdentityError, match="neither"):
        signed(BOB)
    with pytest.raises(ConfigError, match="no credited work"):
        signed(LEARNER, identity("nobody"))
    with pytest.raises(IntegrityError):
        signed(snapshot=replace(SNAPSHOT, incident="broken"))


def test_any_changed_fact_breaks_the_signature() -> None:
    document = json.loads(signed().text)
    for field in fields(Certificate):
        value = document[field.name]
        changed: Any = value + 1 if isinstance(value, int | float) else BOB.peer_id if field.name == "signer" else "x"
        with pytest.raises((IntegrityError, ConfigError)):
            read(json.dumps({**document, field.name: changed}))
    for broken in ("", "{}", "[]", json.dumps({**document, "more": 1}), json.dumps({**document, "signature": "zz"})):
        with pytest.raises(ConfigError):
            read(broken)


def test_a_fact_that_the_ledger_does_not_confirm_is_named() -> None:
    good = signed().certificate
    for field in fields(Certificate):
        if field.name in ("format", "issued_at"):
            continue
        value = getattr(good, field.name)
        wrong: Any = value + 1 if isinstance(value, int | float) else BOB.peer_id
        with pytest.raises(
            IntegrityError, match="differs" if field.name == "contributor" else field.name.replace("_", " ")
        ):
            recount(replace(good, **{field.name: wrong}), SNAPSHOT)
    with pytest.raises(IntegrityError):
        recount(good, MemorySource(sample_run(0, steps=2)).snapshot())


def test_other_files_hold_no_certificate() -> None:
    for data in (b"", b"%PDF-1.4 nothing", b"\x89PNG\r\n\x1a\nxx", b"GIF89a"):
        assert certificate_text(data) is None
