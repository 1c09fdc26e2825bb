"""Certificates: signed by the right keys, carried by the picture, and held to the ledger fact by fact."""

from __future__ import annotations

import io
import json
import struct
import time
import zlib
from dataclasses import fields, replace
from typing import Any

import pytest
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

from p2prl.errors import ConfigError, IdentityError, IntegrityError
from p2prl.protocol.delegation import sign_delegation, sign_revocation
from p2prl.protocol.digests import digest
from p2prl.protocol.identity import Identity
from p2prl.scoreboard.certificate import Certificate, Signed, issue, read, recount
from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.scoreboard.web.certificate_picture import certificate_pdf, certificate_png, certificate_text, shows
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


# --- pictures -------------------------------------------------------------------------------------------------------


def saved(image: Image.Image, text: str, **options: Any) -> bytes:
    """A PNG that carries this text."""
    info, out = PngInfo(), io.BytesIO()
    info.add_itxt("p2prl certificate", text)
    image.save(out, "PNG", pnginfo=info, **options)
    return out.getvalue()


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def test_a_picture_shows_what_was_signed_by_its_pixels_alone() -> None:
    made = signed()
    png = certificate_png(made)
    image = Image.open(io.BytesIO(png))
    assert shows(png, made)
    assert shows(saved(image, made.text, compress_level=1), made), "other compression shows the same"
    painted = image.copy()
    ImageDraw.Draw(painted).text((150, 610), "2,000,000", fill="#1d2421")
    one_pixel = image.copy()
    one_pixel.putpixel((0, 0), (245, 246, 241))
    for other in (painted, one_pixel, image.resize((1755, 1240)), image.convert("L"), image.convert("RGBA")):
        forged = saved(other, made.text)
        assert certificate_text(forged) == made.text, "its text is right"
        assert not shows(forged, made)


def test_a_picture_with_anything_else_that_a_viewer_shows_is_refused() -> None:
    made = signed()
    png = certificate_png(made)
    image, frame = Image.open(io.BytesIO(png)), Image.new("RGB", (1754, 1240), "red")
    assert not shows(saved(image, made.text, save_all=True, append_images=[frame]), made), "a second frame"
    for kind in (b"gAMA", b"iCCP", b"tRNS", b"zzZz"):
        assert not shows(png[:33] + chunk(kind, bytes(6)) + png[33:], made)
    for broken in (png[:200], b"", b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", b"12")):
        assert not shows(broken, made)


def test_a_pdf_is_the_one_that_is_drawn_of_its_text() -> None:
    made = signed()
    pdf = certificate_pdf(made)
    assert shows(pdf, made)
    picture = pdf.index(b"stream")
    for other in (pdf[: picture + 999] + b"x" + pdf[picture + 1000 :], pdf + b"\n", certificate_pdf(signed(LEARNER))):
        assert not shows(other, made)


def test_a_picture_that_claims_to_be_huge_is_not_opened() -> None:
    """The imaging library raises something of its own for these."""
    for width, height in ((1 << 16, 1 << 15), (1 << 31, 1 << 31), (1 << 16, 1 << 11)):
        header = struct.pack(">II", width, height) + bytes([8, 2, 0, 0, 0])
        assert certificate_text(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IEND", b"")) is None


# --- revoked machines -----------------------------------------------------------------------------------------------

START_MS = int(START_S * 1000)
HOUR_MS = 3_600_000


def machines_ledger() -> LedgerWriter:
    """A ledger in which Ann's machine, which is Bob's key, worked for her from the first hour on."""
    writer = LedgerWriter()
    writer.add(BOB, sign_delegation(ANN, BOB.public_key, serial=START_MS, expires_ms=START_MS + 1000 * HOUR_MS))
    writer.receipts(0, receipt(0, BOB), receipt(1, ANN))
    return writer


def test_a_certificate_that_a_machine_signed_after_its_revocation_is_refused() -> None:
    writer = machines_ledger()
    before = MemorySource(writer).snapshot()
    early, late = (issue(before, ANN.peer_id, BOB, now_ms=START_MS + hours * HOUR_MS) for hours in (1, 3))
    recount(late.certificate, before)
    writer.now += 4 * 3600
    writer.add(ANN, sign_revocation(ANN, BOB.public_key, serial=START_MS + 1, from_ms=START_MS + 2 * HOUR_MS))
    revoked = MemorySource(writer).snapshot()
    recount(early.certificate, before, newest=revoked.board)
    with pytest.raises(IntegrityError, match=r"revoked the machine .* from 2026-09-21 \d\d:13:20 UTC on"):
        recount(late.certificate, before, newest=revoked.board)
    by_owner = issue(before, ANN.peer_id, ANN, now_ms=START_MS + 3 * HOUR_MS)
    recount(by_owner.certificate, before, newest=revoked.board)


def test_a_date_before_the_revocation_does_not_help_a_machine_that_names_later_receipts() -> None:
    writer = machines_ledger()
    writer.now += 3 * 3600
    writer.receipts(1, receipt(2, ANN))
    later = MemorySource(writer).snapshot()
    dated_back = issue(later, ANN.peer_id, BOB, now_ms=START_MS + HOUR_MS)
    writer.add(ANN, sign_revocation(ANN, BOB.public_key, serial=START_MS + 1, from_ms=START_MS + 2 * HOUR_MS))
    with pytest.raises(IntegrityError, match="revoked"):
        recount(dated_back.certificate, later, newest=MemorySource(writer).snapshot().board)


def test_a_revoked_machine_issues_nothing_until_it_is_delegated_again() -> None:
    writer = machines_ledger()
    writer.add(ANN, sign_revocation(ANN, BOB.public_key, serial=START_MS + 1, from_ms=START_MS + 2 * HOUR_MS))
    revoked = MemorySource(writer).snapshot()
    issue(revoked, ANN.peer_id, BOB, now_ms=START_MS + 2 * HOUR_MS - 1)
    with pytest.raises(IdentityError, match="revoked"):
        issue(revoked, ANN.peer_id, BOB, now_ms=START_MS + 2 * HOUR_MS)
    writer.add(BOB, sign_delegation(ANN, BOB.public_key, serial=START_MS + 2, expires_ms=START_MS + 1000 * HOUR_MS))
    issue(MemorySource(writer).snapshot(), ANN.peer_id, BOB, now_ms=START_MS + 3 * HOUR_MS)
