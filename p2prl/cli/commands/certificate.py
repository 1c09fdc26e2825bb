"""`p2prl certificate`: a signed certificate of a contributor's work, as a picture."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.commands.open_ledger import await_current_ledger, ledger_of
from p2prl.cli.options import AsJson, Home, Listen
from p2prl.cli.views.console import emit, say
from p2prl.config.owner_files import OWNER_FOLDER, named_keys
from p2prl.config.run_folder import open_folder
from p2prl.config.worker_folder import default_home
from p2prl.disk_full import write_error
from p2prl.errors import ConfigError, IdentityError, IntegrityError, MachineError
from p2prl.plain_text import counted
from p2prl.protocol.identity import Identity
from p2prl.protocol.join_link import is_link
from p2prl.quantity_text import count, credit, quantity
from p2prl.scoreboard import certificate as certificates
from p2prl.scoreboard.documents.api_views import require_run
from p2prl.scoreboard.documents.ranked_leaderboard import owner_of
from p2prl.scoreboard.ledger.ledger_fold import BoardState
from p2prl.scoreboard.ledger.ledger_sources import LedgerSource, Snapshot
from p2prl.scoreboard.ledger_dump import all_entries


def certificate(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A run folder, or a join link in quotes.")],
    contributor: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="Peer id. Without it, the owner of a key on this machine."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="File to write; its ending chooses between .png and .pdf.")] = Path(
        "certificate.png"
    ),
    check: Annotated[
        Path | None,
        typer.Option(
            "--check", help="Check this certificate, and its picture, against the ledger instead. Default: make one."
        ),
    ] = None,
    home: Home = None,
    listen: Listen = None,
    as_json: AsJson = False,
) -> None:
    """Make a certificate of a contributor's checked work to print or to show, or check one.

    In a run folder the learner signs it; with a join link, a key on this machine that the work was done with.
    """
    if check is not None:
        _check(source, check, home=home, listen=listen, as_json=as_json)
        return
    if out.suffix.lower() not in _ENDINGS:
        raise ConfigError(f"--out {out} ends in neither .png nor .pdf", remedy="For example: --out certificate.pdf")
    with ledger_of(source, home, listen) as ledger:
        await_current_ledger(ledger)
        snapshot = ledger.snapshot()
    _, board = require_run(snapshot)
    signer, owner = _signer(source, contributor, board, home or default_home())
    signed = certificates.issue(snapshot, owner, signer, now_ms=int(time.time() * 1000))
    from p2prl.scoreboard.web.certificate_picture import certificate_pdf, certificate_png

    data = certificate_pdf(signed) if out.suffix.lower() == ".pdf" else certificate_png(signed)
    try:
        out.write_bytes(data)
    except OSError as error:
        raise write_error(error, out) from error
    facts = signed.certificate
    if as_json:
        emit(_document(out, facts))
        return
    say(f"Certificate of {facts.handle} in {out}: {counted(facts.verified_groups, 'verified group')} of {facts.name}.")
    say(f"Anyone can check it:  p2prl certificate SOURCE --check {out}")


_MAX_FILE_BYTES = 8 << 20
"""Largest certificate that is read; ours have about 100 KB."""

_ENDINGS = (".png", ".pdf")


def _check(source: str, file: Path, *, home: Path | None, listen: list[str] | None, as_json: bool) -> None:
    """Hold the certificate in `file` to the ledger of `source`, and its picture to its signed text.

    Raises `IntegrityError` when they differ.
    """
    from p2prl.scoreboard.web.certificate_picture import certificate_text, shows

    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise MachineError(f"{file} cannot be read: {error}", remedy="Give the file of a certificate.") from error
    text = certificate_text(data) if len(data) <= _MAX_FILE_BYTES else None
    if text is None:
        raise ConfigError(f"{file} holds no certificate", remedy="Use a file made by `p2prl certificate`.")
    signed = certificates.read(text)
    facts = signed.certificate
    with ledger_of(source, home, listen) as ledger:
        await_current_ledger(ledger)
        _, newest = require_run(ledger.snapshot())
        certificates.recount(facts, _at_height(ledger, facts.ledger_height), newest=newest)
    if not shows(data, signed):
        raise IntegrityError(
            f"{file} does not look as this program draws its signed text, which says: {_figures(facts)}",
            remedy="Go by these figures, or ask its owner for a new one: another release of the drawing libraries may "
            "have made it.",
        )
    if as_json:
        emit(_document(file, facts))
        return
    say(f"Valid, by this ledger: {_figures(facts)}")


def _document(file: Path, facts: certificates.Certificate) -> dict[str, object]:
    """A file and what is signed in it."""
    return {"file": str(file), "valid": True, **asdict(facts)}


def _figures(facts: certificates.Certificate) -> str:
    """What a certificate says, as a sentence."""
    when = f", from {facts.worked_from} to {facts.worked_until}" if facts.worked_from else ""
    return (
        f"{facts.handle} ({facts.contributor}) has {counted(facts.verified_groups, 'verified group')} of {facts.name}, "
        f"{quantity(facts.verified_tokens)} verified tokens and {credit(facts.credit)} of checked work{when}; rank "
        f"{count(facts.rank)} of {count(facts.contributors)}."
    )


def _at_height(ledger: LedgerSource, height: int) -> Snapshot:
    """The ledger as it was at a height: a certificate is older than the newest entries."""
    snapshot = ledger.snapshot()
    run, board = require_run(snapshot)
    if height >= board.height:
        return snapshot
    fold = run.new_fold()
    for raw in all_entries(ledger, height):
        fold.follow(raw)
    return replace(snapshot, board=fold.state())


def _signer(source: str, contributor: str | None, board: BoardState, home: Path) -> tuple[Identity, str]:
    """The key that signs, and the peer id of the contributor."""
    if not is_link(source) and contributor is not None:
        return open_folder(Path(source)).identity, contributor
    keys = [(path.parent.name, identity) for path, identity in named_keys(home)]
    keys.sort(key=lambda item: item[0] != OWNER_FOLDER)
    wanted = None if contributor is None else owner_of(board, contributor)
    for _, identity in keys:
        owner = owner_of(board, identity.peer_id)
        if owner is not None and (contributor is None or owner == wanted):
            return identity, contributor or identity.peer_id
    if contributor is None:
        raise IdentityError(
            "no key on this machine has receipts in this run", remedy="Give the contributor's id, or another --home."
        )
    raise IdentityError(
        "this machine has no key of this contributor",
        remedy="Make the certificate on its own machine, or in the run folder.",
    )
