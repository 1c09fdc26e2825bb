"""Evidence of refused work: the learner's signed receipts and the signed groups that they refuse, in one file.

All signatures in it can be checked without asking anybody, and the groups replayed with the weights of their version.
It says who signed what; that a group is right, only a replay says.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from p2prl.disk_full import write_error
from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import body_of, envelope_digest, open_envelope
from p2prl.protocol.ledger_messages import Receipts, ReceiptState
from p2prl.protocol.manifests import RunManifest
from p2prl.protocol.signed_group import read_group

MAX_CASES = 16
"""Groups in a file: enough that nobody calls it chance."""

MAX_BYTES = 64 * 1024**2
"""Size of a file. Large groups are left out beyond it."""

_SUFFIX = ".evidence"


class _Case(msgspec.Struct, frozen=True, array_like=True):
    receipts: bytes
    group: bytes
    body: bytes
    replay: Annotated[str, msgspec.Meta(max_length=16)]


class _Document(msgspec.Struct, frozen=True, array_like=True, tag="p2prl/evidence/1"):
    manifest: bytes
    judged: Annotated[int, msgspec.Meta(ge=0)]
    refused: Annotated[int, msgspec.Meta(ge=0)]
    cases: Annotated[tuple[_Case, ...], msgspec.Meta(max_length=MAX_CASES)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One refused group."""

    receipts: bytes
    """Envelope of the learner's receipts, of which one refuses the group."""
    group: bytes
    """Envelope of the group."""
    body: bytes
    """Body of a large group; empty for others."""
    replay: str
    """What the volunteer's own replay found, a value of `Replayed`; empty where it tried none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What a volunteer keeps when it stops because its work is refused."""

    manifest: bytes
    """Envelope of the run's manifest."""
    judged: int
    """Groups that the learner had credited or refused, as the volunteer counted them."""
    refused: int
    cases: tuple[Case, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """One refusal whose signatures are right."""

    group: bytes
    volunteer: bytes
    """Public key that signed the group."""
    version: int
    slot: int
    step: int
    """Learner step at which the receipt was signed."""
    signed_ms: int
    reason: str
    tokens: int
    """Completion tokens of the group."""
    replay: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedEvidence:
    """A file whose every signature was checked."""

    run: Digest
    name: str
    learner: bytes
    """Public key that signed the receipts."""
    judged: int
    refused: int
    """As the volunteer counted them; signed by nobody."""
    refusals: tuple[Refusal, ...]


def evidence_path(spool: Path) -> Path:
    """Where the volunteer with this spool keeps its evidence."""
    return spool.with_name(f"refused{_SUFFIX}")


def write_evidence(path: Path, evidence: Evidence) -> None:
    """Write a file, in place of an earlier one; leaves out groups that it has no room for. Raises `MachineError`."""
    cases, room = [], MAX_BYTES - len(evidence.manifest) - 1024
    for case in evidence.cases[:MAX_CASES]:
        room -= len(case.receipts) + len(case.group) + len(case.body) + 64
        if room > 0:
            cases.append(_Case(case.receipts, case.group, case.body, case.replay))
    document = _Document(evidence.manifest, evidence.judged, evidence.refused, tuple(cases))
    unfinished = path.with_suffix(".unfinished")
    try:
        unfinished.write_bytes(msgspec.msgpack.encode(document))
        unfinished.replace(path)
    except OSError as error:
        raise write_error(error, f"the evidence {path}", kept="finished work is safe") from error


def read_evidence(path: Path) -> CheckedEvidence:
    """Read a file and check it: each receipt is signed by the run's learner and refuses the group that comes with it,
    which its volunteer has signed for this run. `ConfigError` when it is no such file, or anything in it does not fit.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES)  # a longer one is cut off, and fails to decode
        return _checked(msgspec.msgpack.decode(raw, type=_Document))
    except (OSError, msgspec.DecodeError, RemoteProtocolError) as error:
        raise ConfigError(
            f"{path} is no evidence of refused work: {error}",
            remedy="Name the file that p2prl join wrote when it stopped, unchanged.",
        ) from error


def _checked(document: _Document) -> CheckedEvidence:
    opened = open_envelope(document.manifest, now=None)
    manifest, run = body_of(opened, RunManifest), envelope_digest(document.manifest)
    if opened.author != manifest.learner:
        raise RemoteProtocolError("the run's manifest is signed by another key than its learner's")
    refusals = tuple(_refusal(case, run, manifest.learner) for case in document.cases)
    if len({refusal.group for refusal in refusals}) != len(refusals):
        raise RemoteProtocolError("it names a group twice")
    return CheckedEvidence(
        run=run,
        name=manifest.name,
        learner=manifest.learner,
        judged=document.judged,
        refused=document.refused,
        refusals=refusals,
    )


def _refusal(case: _Case, run: Digest, learner: bytes) -> Refusal:
    if len(case.receipts) > limits.MAX_ENVELOPE_BYTES:
        raise RemoteProtocolError("receipts are larger than any envelope")
    signed = read_group(case.group, case.body)
    group, digest = signed.group, envelope_digest(case.group)
    opened = open_envelope(case.receipts, now=None)
    receipts = body_of(opened, Receipts)
    if opened.author != learner or opened.run != run:
        raise RemoteProtocolError("a receipt is not signed by the run's learner for this run")
    if signed.envelope.run != run:
        raise RemoteProtocolError("a group is not of this run")
    receipt = next((each for each in receipts.receipts if each.group == digest), None)
    if receipt is None or receipt.peer != signed.author or receipt.state != ReceiptState.REJECTED:
        raise RemoteProtocolError("a receipt does not refuse the group that comes with it")
    return Refusal(
        group=digest,
        volunteer=signed.author,
        version=group.version,
        slot=group.slot,
        step=receipts.step,
        signed_ms=opened.sent_ms,
        reason=receipt.reason,
        tokens=sum(len(each.tokens) // 4 for each in group.completions),
        replay=case.replay,
    )
