"""A certificate as a picture to print or to show: A4 across, as PNG or PDF, with its signed text inside the file."""

from __future__ import annotations

import base64
import re

from p2prl.plain_text import counted
from p2prl.quantity_text import count, credit, quantity
from p2prl.scoreboard.certificate import MAX_BYTES, Certificate, Signed
from p2prl.scoreboard.web.drawing import ACCENT, CARD, INK, LINE, SOFT, Picture, png_text

_DPI = 150
_WIDTH, _HEIGHT = 1754, 1240
"""A4 across at 150 dots an inch."""

_LEFT, _RIGHT = 150, _WIDTH - 150
_CHUNK = "p2prl certificate"
_MARK = "p2prl-certificate:"
_PDF = b"%PDF"


def certificate_png(signed: Signed) -> bytes:
    """The certificate as PNG."""
    return _drawn(signed).png({_CHUNK: signed.text})


def certificate_pdf(signed: Signed) -> bytes:
    """The certificate as a PDF of one page. The same from every call: `shows` compares it."""
    certificate = signed.certificate
    return _drawn(signed).pdf(
        title=f"Certificate of {certificate.handle}",
        subject=f"Contribution to {certificate.name}",
        keywords=_MARK + base64.b64encode(signed.text.encode()).decode(),
        dpi=_DPI,
        at_s=certificate.issued_ms / 1000,
    )


def shows(data: bytes, signed: Signed) -> bool:
    """Whether a file with this signed text shows what was signed and nothing else.

    A PNG has to have the pixels that are drawn here, a PDF the same bytes: it may hold anything beside its page. A
    certificate that another release of the drawing libraries made may differ too.
    """
    return data == certificate_pdf(signed) if data.startswith(_PDF) else _drawn(signed).is_shown_by(data)


def certificate_text(data: bytes) -> str | None:
    """The signed text inside a PNG or PDF made here; None without one."""
    if data.startswith(_PDF):
        # A PDF's properties are UTF-16; base64 has no character that a PDF string escapes.
        found = re.search(re.escape(_MARK.encode("utf-16-be")) + rb"((?:\x00[A-Za-z0-9+/=])+)", data)
        if found is None or len(found[1]) > 4 * MAX_BYTES:
            return None
        try:
            return base64.b64decode(found[1].decode("utf-16-be"), validate=True).decode()
        except ValueError:
            return None
    return png_text(data, _CHUNK)


def _drawn(signed: Signed) -> Picture:
    certificate = signed.certificate
    picture = Picture(_WIDTH, _HEIGHT)
    picture.box(56, 56, _WIDTH - 56, _HEIGHT - 56, fill=CARD)
    picture.frame(56, 56, _WIDTH - 56, _HEIGHT - 56, color=ACCENT, width=6)
    picture.frame(72, 72, _WIDTH - 72, _HEIGHT - 72, color=LINE, width=2)
    picture.text((_LEFT, 130), "Certificate of contribution", size=36, color=ACCENT, bold=True)
    picture.text((_LEFT, 215), certificate.handle, size=84, bold=True)
    picture.text((_LEFT, 335), _lent(certificate), size=32, color=SOFT)
    for row, line in enumerate(picture.wrapped(certificate.goal, size=40, width=_RIGHT - _LEFT, lines=3, bold=True)):
        picture.text((_LEFT, 395 + 56 * row), line, size=40, bold=True)
    _figures(picture, certificate)
    _proof(picture, signed)
    return picture


def _lent(certificate: Certificate) -> str:
    """What the contributor did, and when; the run's goal follows."""
    first, last = certificate.worked_from, certificate.worked_until
    when = "" if not first else f" on {first}" if first == last else f" from {first} to {last}"
    return f"lent its computers to a language model{when}, with this goal:"


def _figures(picture: Picture, certificate: Certificate) -> None:
    figures = (
        (count(certificate.verified_groups), "verified groups"),
        (quantity(certificate.verified_tokens), "verified tokens"),
        (credit(certificate.credit), "of checked work"),
        (count(certificate.rank), f"rank of {count(certificate.contributors)}"),
    )
    pitch = (_RIGHT - _LEFT) / len(figures)
    for place, (value, name) in enumerate(figures):
        picture.text((_LEFT + pitch * place, 610), value, size=52, color=INK, bold=True)
        picture.text((_LEFT + pitch * place, 680), name, size=26, color=SOFT)


def _proof(picture: Picture, signed: Signed) -> None:
    certificate = signed.certificate
    who = "the run's learner" if certificate.signer == certificate.learner else "the contributor"
    half = len(signed.signature) // 2
    rows = (
        ("Run", f"{certificate.name}  {certificate.run}"),
        ("Contributor", certificate.contributor),
        ("Root of receipts", certificate.receipts_root),
        (f"Ledger, {counted(certificate.ledger_height, 'entry', 'entries')}", certificate.ledger_head),
        ("Signed by", f"{who}  {certificate.signer}"),
        ("Signature", signed.signature[:half]),
        ("", signed.signature[half:]),
        ("Issued", certificate.issued_at),
    )
    picture.line([(_LEFT, 775), (_RIGHT, 775)], color=LINE, width=2)
    for row, (name, value) in enumerate(rows):
        picture.text((_LEFT, 800 + 34 * row), name, size=20, color=SOFT)
        picture.text((_LEFT + 260, 800 + 34 * row), value, size=20)
    picture.text((_LEFT, 1096), "Check it:  p2prl certificate SOURCE --check FILE", size=22, color=ACCENT, bold=True)
