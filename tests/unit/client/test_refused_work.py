"""A learner that rejects everything: the volunteer slows down, replays, stops with a cause, and keeps signed proof."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from p2prl.client.evidence import evidence_path, read_evidence
from p2prl.client.refusal_judgement import DOUBTED_AT, STOPPED_AT, Replayed
from p2prl.errors import ConfigError, MachineError, P2PRLError, WorkRefusedError
from p2prl.exit_codes import MACHINE, NOT_AGAIN, WORK_REFUSED
from p2prl.net.process import control
from p2prl.protocol.envelope import envelope_digest
from p2prl.protocol.ledger_messages import Receipts, ReceiptState, StorageReceipt
from tests.unit.client.volunteer_rig import ME, VolunteerRig, settled
from tests.unit.learner.small_run import identity


class Learner:
    """Rejects every group of the volunteer as soon as it arrives, until it has rejected `at_most`."""

    def __init__(self, rig: VolunteerRig, at_most: int = 10**6) -> None:
        self.rig = rig
        self.at_most = at_most
        self.judged: list[bytes] = []

    def turn(self) -> None:
        new = [raw for raw in self.rig.port.published if raw not in self.judged][: self.at_most - len(self.judged)]
        self.judged += new
        receipts = tuple(settled(raw, ReceiptState.REJECTED, "seed_mismatch") for raw in new)
        if new := [raw for raw in self.rig.port.published if raw not in self.judged]:
            stored = StorageReceipt(tuple(envelope_digest(raw) for raw in new))
            self.rig.port.inbox.append(control.EnvelopeArrived(self.rig.says(stored)))
        if receipts:
            self.rig.port.inbox.append(control.EnvelopeArrived(self.rig.says(Receipts(4, receipts))))
        self.rig.turns(1)


def worked(rig: VolunteerRig, replay: object, at_most: int = 10**6) -> tuple[Learner, list[str]]:
    """A volunteer whose work is rejected until it stops, or for 60 turns; the reasons it was asked to check."""
    asked: list[str] = []

    def checked(raw: bytes, body: bytes, reason: str) -> Replayed:
        assert raw in learner.judged
        assert body == b""
        asked.append(reason)
        assert isinstance(replay, Replayed)
        return replay

    rig.volunteer.close()
    rig.replay = None if replay is None else checked
    rig.start()
    rig.introduce()
    rig.offer(0)
    learner = Learner(rig, at_most)
    for _ in range(60):
        learner.turn()
    return learner, asked


def stopped(rig: VolunteerRig) -> P2PRLError:
    with pytest.raises(P2PRLError) as told:
        rig.volunteer.run(rig.port)
    return told.value


def test_a_learner_that_its_own_replay_contradicts_is_left_with_proof(rig: VolunteerRig) -> None:
    learner, asked = worked(rig, Replayed.RIGHT)
    assert asked == ["seed_mismatch"] * 3
    assert len(rig.port.published) < STOPPED_AT, "it stops at once, not after more wasted work"
    error = stopped(rig)
    assert isinstance(error, WorkRefusedError)
    assert error.exit_code == WORK_REFUSED in NOT_AGAIN
    count = len(learner.judged)
    assert str(error).startswith(
        f"the learner rejected {count} of {count} groups of this machine that it judged (seed_"
    )
    assert "replayed 3 of them with the run's own weights, and found 3 right" in str(error)
    assert "p2prl receipts evidence" in error.remedy

    proof = read_evidence(evidence_path(rig.spool))
    assert (proof.run, proof.learner) == (rig.small_run.run, rig.small_run.learner.public_key)
    assert (proof.judged, proof.refused) == (count, count)
    assert {each.group for each in proof.refusals} == {envelope_digest(raw) for raw in learner.judged}
    assert {(each.volunteer, each.reason, each.step) for each in proof.refusals} == {
        (ME.public_key, "seed_mismatch", 4)
    }
    assert [each.replay for each in proof.refusals].count("right") == 3


def test_the_engine_is_freed_once_when_it_stops(rig: VolunteerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[None] = []
    monkeypatch.setattr(rig.small_run.sampler, "sleep", lambda: freed.append(None))
    worked(rig, Replayed.RIGHT)
    assert len(freed) <= 4, "before each of three replays, and at the end"


def test_a_machine_that_computes_wrong_numbers_is_told_that_and_blames_nobody(rig: VolunteerRig) -> None:
    worked(rig, Replayed.WRONG)
    error = stopped(rig)
    assert isinstance(error, MachineError)
    assert error.exit_code == MACHINE
    assert "this machine's own replay says the same of 3 of the 3 it replayed" in str(error)
    assert "p2prl doctor" in error.remedy
    assert not evidence_path(rig.spool).exists()


@pytest.mark.parametrize("replay", [None, Replayed.IMPOSSIBLE, Replayed.UNDECIDED])
def test_without_an_answer_it_slows_down_and_stops_later(rig: VolunteerRig, replay: Replayed | None) -> None:
    learner, _ = worked(rig, replay)
    assert len(learner.judged) == STOPPED_AT
    assert len(rig.port.published) <= STOPPED_AT + 1
    error = stopped(rig)
    assert isinstance(error, WorkRefusedError)
    said = "found nothing wrong with 3" if replay is Replayed.UNDECIDED else "cannot be replayed here any more"
    assert said in str(error)
    assert len(read_evidence(evidence_path(rig.spool)).refusals) == STOPPED_AT


def test_it_says_so_once_and_then_waits_for_each_receipt(rig: VolunteerRig) -> None:
    learner, _ = worked(rig, None, at_most=DOUBTED_AT)
    (said,) = [text for text in rig.notices if "one slot at a time" in text]
    assert said.startswith(f"the learner rejected {DOUBTED_AT} of {DOUBTED_AT} groups")
    assert rig.progress[-1].state == "waiting for the learner's next receipt: it rejects this machine's groups"
    before = len(rig.port.published)
    rig.turns(20)
    assert len(rig.port.published) == before
    for raw in [each for each in rig.port.published if each not in learner.judged]:
        rig.port.inbox.append(control.EnvelopeArrived(rig.says(Receipts(5, (settled(raw),)))))
    rig.turns(4)
    assert len(rig.port.published) == before + 1, "after the receipts it goes on, with one slot"


@pytest.fixture
def proof(rig: VolunteerRig) -> Path:
    worked(rig, Replayed.RIGHT)
    stopped(rig)
    return evidence_path(rig.spool)


def changed(path: Path, change: object) -> None:
    document = msgspec.msgpack.decode(path.read_bytes())
    assert callable(change)
    change(document)
    path.write_bytes(msgspec.msgpack.encode(document))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda it: it[4][0].__setitem__(0, it[4][0][1]), "expected a Receipts"),
        (lambda it: it[4][0].__setitem__(1, it[4][1][1]), "does not refuse|twice"),
        (lambda it: it[4].append(it[4][0]), "twice"),
        (lambda it: it[4][0].__setitem__(1, it[4][0][1][:-1] + bytes([it[4][0][1][-1] ^ 1])), "signature"),
        (lambda it: it[4].extend([it[4][0]] * 20), "length"),
        (lambda it: it.__setitem__(1, it[4][0][1]), ""),
    ],
)
def test_proof_that_anybody_changed_is_refused(proof: Path, change: object, why: str) -> None:
    read_evidence(proof)
    changed(proof, change)
    with pytest.raises(ConfigError, match=f"no evidence of refused work: .*({why})"):
        read_evidence(proof)


def test_a_receipt_of_another_signer_is_no_proof(rig: VolunteerRig, proof: Path) -> None:
    def forge(document: list[list[list[bytes]]]) -> None:
        receipt = settled(document[4][0][1], ReceiptState.REJECTED, "seed_mismatch")
        document[4][0][0] = rig.says(Receipts(4, (receipt,)), author=identity("somebody else"))

    changed(proof, forge)
    with pytest.raises(ConfigError, match="not signed by the run's learner"):
        read_evidence(proof)


def test_a_receipt_that_credits_the_group_is_no_proof(rig: VolunteerRig, proof: Path) -> None:
    changed(proof, lambda it: it[4][0].__setitem__(0, rig.says(Receipts(4, (settled(it[4][0][1]),)))))
    with pytest.raises(ConfigError, match="does not refuse"):
        read_evidence(proof)


@pytest.mark.parametrize("raw", [b"", b"\x80", b"p2prl", bytes(1000)])
def test_other_files_are_no_proof(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "refused.evidence"
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match="no evidence"):
        read_evidence(path)
    with pytest.raises(ConfigError, match="no evidence"):
        read_evidence(tmp_path / "missing")
