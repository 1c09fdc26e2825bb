"""Certificate of a contributor's work: facts that anybody can recount from the ledger, and a signature over them.

The learner signs it for anyone, or the contributor with its own key. The second proves that the owner of the key holds
the paper; what the numbers are worth is in the ledger either way, which the learner signed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from p2prl.errors import ConfigError, IdentityError, IntegrityError
from p2prl.protocol.digests import digest
from p2prl.protocol.identity import Identity, PeerId, peer_id_of, public_key_of, verify_raw
from p2prl.scoreboard.documents.api_views import require_run, run_document
from p2prl.scoreboard.documents.ranked_leaderboard import contributor_document
from p2prl.scoreboard.ledger.hourly_totals import HOUR_MS
from p2prl.scoreboard.ledger.ledger_fold import BoardState
from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.time_text import moment, time_of_text, time_text

FORMAT = "p2prl/certificate/v1"

_ADDED = frozenset({"worked_from", "worked_until"})
"""Facts that certificates of earlier releases have not."""

MAX_BYTES = 16_384
"""Longest certificate text; ours have about 1 KB, and a stranger's file is read no further."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """The facts. It has this many fields because each is a line of the paper."""

    format: str
    run: str
    """Digest of the run manifest's envelope, hex."""
    learner: str
    """Peer id of the run's learner."""
    name: str
    goal: str
    contributor: str
    """Peer id."""
    handle: str
    rank: int
    contributors: int
    verified_groups: int
    verified_tokens: int
    credit: float
    receipts_root: str
    ledger_height: int
    ledger_head: str
    issued_at: str
    signer: str
    """Peer id of who signed: the learner or the contributor."""
    worked_from: str = ""
    """First day (UTC) with credited work; empty in a certificate of an earlier release."""
    worked_until: str = ""
    """Last such day."""

    @property
    def issued_ms(self) -> int:
        """`issued_at` in milliseconds since 1970. Raises `ValueError` for a text that is no time."""
        return time_of_text(self.issued_at)


@dataclass(frozen=True, slots=True)
class Signed:
    """A certificate as it was signed."""

    certificate: Certificate
    text: str
    """JSON with the facts and the signature: what a picture carries."""
    signature: str
    """Hex."""


def issue(snapshot: Snapshot, contributor_id: str, signer: Identity, *, now_ms: int) -> Signed:
    """Sign the certificate of a contributor.

    Raises `ConfigError` when the ledger has no credited work of it, `IdentityError` unless `signer` is the run's
    learner, the contributor or one of its machines.
    """
    run, board = require_run(snapshot)
    if snapshot.incident is not None:
        raise IntegrityError(snapshot.incident, remedy="No certificate is made from a ledger that is broken.")
    person = contributor_document(snapshot, contributor_id)
    if person is None or not person.verified_groups + person.sampled_groups:
        raise ConfigError(
            "the ledger has no credited work of this contributor", remedy="Take an id from the leaderboard: p2prl board"
        )
    if run.validator:
        raise ConfigError(
            "this is a validator's own ledger, and a certificate is made from the learner's",
            remedy="Give the join link, or the run folder of the learner.",
        )
    owner = public_key_of(PeerId(person.id))
    if signer.public_key not in {run.manifest.learner, owner, *board.machines[owner]}:
        raise IdentityError(
            "this key belongs neither to the contributor nor to the learner",
            remedy="Make the certificate on a machine of the contributor, or in the run folder.",
        )
    revoked = _revoked(board, owner, signer.peer_id, at_ms=now_ms)
    if revoked:
        raise IdentityError(
            f"{revoked}, so it signs nothing for its owner",
            remedy="Make the certificate on another machine of the contributor, or in the run folder.",
        )
    certificate = Certificate(
        format=FORMAT,
        run=run.run.hex(),
        learner=peer_id_of(run.manifest.learner),
        name=run.manifest.name,
        goal=run.manifest.goal,
        contributor=person.id,
        handle=person.handle,
        rank=person.rank,
        contributors=run_document(snapshot).totals.contributors,
        verified_groups=person.verified_groups + person.sampled_groups,
        verified_tokens=person.verified_tokens,
        credit=person.credit,
        receipts_root=person.receipts_root,
        ledger_height=board.height,
        ledger_head=board.head.hex(),
        issued_at=time_text(now_ms) or "",
        signer=signer.peer_id,
        **_days(board, owner),
    )
    signature = signer.sign_raw(_signed_bytes(certificate)).hex()
    text = msgspec.json.encode({**_facts(certificate), "signature": signature}).decode()
    return Signed(certificate, text, signature)


def read(text: str) -> Signed:
    """Check the signature of a certificate's text.

    Raises `ConfigError` for anything that is no certificate, `IntegrityError` when its signature does not match.
    Whether the signer is the contributor's is a question for `recount`.
    """
    try:
        document = msgspec.json.decode(text[:MAX_BYTES], type=dict[str, Any])
        signature = bytes.fromhex(document.pop("signature"))
        certificate = msgspec.convert(document, Certificate)
        signer = public_key_of(PeerId(certificate.signer))
        _ = certificate.issued_ms
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, IdentityError) as error:
        raise ConfigError("this file is not a certificate", remedy="Use a file made by `p2prl certificate`.") from error
    if certificate.format != FORMAT or set(document) != set(_facts(certificate)):
        raise ConfigError("this file is not a certificate", remedy="Use a file made by `p2prl certificate`.")
    if not verify_raw(signer, _signed_bytes(certificate), signature):
        raise IntegrityError(
            "the certificate was changed after it was signed", remedy="Ask its owner for the original."
        )
    return Signed(certificate, text, signature.hex())


def recount(certificate: Certificate, snapshot: Snapshot, *, newest: BoardState | None = None) -> None:
    """Hold a certificate to the ledger at its height. Raises `IntegrityError` naming the first fact that differs.

    `newest` is the ledger as it is now, if it has grown: an owner may have revoked the machine that signed.
    """
    run, board = require_run(snapshot)
    person = contributor_document(snapshot, certificate.contributor)
    owner = None if person is None else public_key_of(PeerId(person.id))
    signers: set[str] = {peer_id_of(run.manifest.learner)}
    if owner is not None:
        signers |= {peer_id_of(key) for key in (owner, *board.machines[owner])}
    counted: dict[str, object] = {
        "run": run.run.hex(),
        "learner": peer_id_of(run.manifest.learner),
        "name": run.manifest.name,
        "goal": run.manifest.goal,
        "ledger_height": board.height,
        "ledger_head": board.head.hex(),
        "contributors": run_document(snapshot).totals.contributors,
    }
    if person is not None:
        counted |= {
            "contributor": person.id,
            "handle": person.handle,
            "rank": person.rank,
            "verified_groups": person.verified_groups + person.sampled_groups,
            "verified_tokens": person.verified_tokens,
            "credit": person.credit,
            "receipts_root": person.receipts_root,
        }
    if owner is not None and (certificate.worked_from or certificate.worked_until):
        counted |= {**dict.fromkeys(_ADDED, ""), **_days(board, owner)}
    different = [name for name, value in counted.items() if getattr(certificate, name) != value]
    if person is None:
        different.append("contributor")
    if certificate.signer not in signers:
        different.append("signer")
    if different:
        raise IntegrityError(
            f"the ledger does not confirm this certificate: {different[0].replace('_', ' ')} differs",
            remedy="Ask for the ledger that it was made from: p2prl ledger dump",
        )
    assert owner is not None, "a contributor that is missing differs"
    # The signer chose the time of issue, but not that of the receipts it names: it signed after them.
    signed_ms = max(certificate.issued_ms, board.newest_ms() or 0)
    revoked = _revoked(newest or board, owner, certificate.signer, at_ms=signed_ms)
    if revoked:
        raise IntegrityError(
            f"{revoked}, and it signed this certificate later",
            remedy="Ask the contributor for one that another of its machines signed, or the run's learner.",
        )


def _revoked(board: BoardState, owner: bytes, signer: str, *, at_ms: int) -> str:
    """A clause on a machine that its owner had revoked at a time; empty for any other signer."""
    from_ms = board.revoked.get((owner, public_key_of(PeerId(signer))))
    if from_ms is None or at_ms < from_ms:
        return ""
    return f"the owner has revoked the machine {signer} from {moment(time_text(from_ms))} on"


def _days(board: BoardState, owner: bytes) -> dict[str, str]:
    """The first and the last day on which the learner signed for work of an owner that is credited."""
    days = sorted((time_text(hour * HOUR_MS) or "")[:10] for hour, workers in board.hours.items() if owner in workers)
    return dict(zip(("worked_from", "worked_until"), (days[0], days[-1]), strict=True)) if days else {}


def _facts(certificate: Certificate) -> dict[str, Any]:
    """The fields by name, without those that a certificate of an earlier release has not."""
    return {name: value for name, value in asdict(certificate).items() if value != "" or name not in _ADDED}


def _signed_bytes(certificate: Certificate) -> bytes:
    parts = [f"{name}={value!r}".encode() for name, value in _facts(certificate).items()]
    return digest("p2prl/certificate-signature/v1", *parts)
