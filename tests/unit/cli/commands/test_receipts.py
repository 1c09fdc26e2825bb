"""`p2prl receipts`: a worker's groups listed, explained and replayed from its own files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from p2prl.cli.views.receipt_advice import advice
from p2prl.client.evidence import Case, Evidence, write_evidence
from p2prl.client.refusal_judgement import Replayed
from p2prl.client.spool import GIVEN_UP, Spool, SpoolConfig
from p2prl.config.network_options import remember_run
from p2prl.config.own_replay import refused_group_replay
from p2prl.config.own_runs import OwnRun
from p2prl.config.roles import prepare_replay
from p2prl.errors import ConfigError, MachineError, P2PRLError
from p2prl.models.groups.group_work import ReplayTools
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.net.storage.versions_at_start import KeptVersions
from p2prl.protocol import ledger_chain
from p2prl.protocol.envelope import seal
from p2prl.protocol.ledger_messages import (
    CheckOutcome,
    Receipt,
    Receipts,
    ReceiptState,
    Verdict,
    VerdictCheck,
    VerdictChecks,
)
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.scoreboard.ledger.ledger_store import LedgerStore
from tests.command_doc import json_keys
from tests.unit.cli.invocation import invoke, json_of
from tests.unit.cli.light_imports import outcomes
from tests.unit.learner.small_run import NOW, SmallRun, identity, with_completion

ME, VALIDATOR = identity("volunteer"), identity("validator")


class Home:
    """A home with one volunteer of a small run."""

    def __init__(self, directory: Path) -> None:
        self.run = SmallRun(directory / "learner", created=NOW)
        self.path = directory / "home"
        self.folder = self.path / "seat-1" / self.run.run.hex()[:16]
        remember_run(self.folder, self.run.manifest_raw)
        blobs = DiskBlobStore(self.folder / "blobs")
        for file in self.run.manifest.files:
            blobs.add(file.blob, self.run.files[file.name])
        self.spool = Spool(self.folder / "spool.db", SpoolConfig())
        self.policy = self.run.publish(0, step=0)
        weights = self.policy.manifest.weights
        blobs.add(weights, self.run.blobs.path(weights.root).read_bytes())
        KeptVersions(self.folder / "blobs").keep(self.policy.raw, self.policy.manifest)

    def weights_file(self) -> Path:
        return self.folder / "blobs" / self.policy.manifest.weights.root.hex()

    def sample(self, slot: int, *, forged: bool = False) -> bytes:
        """A group in the spool, delivered to the learner; returns its name."""
        group = self.run.group(self.policy, ME, slot)
        stored = self.run.sealed(_forged(group) if forged else group, ME)
        tokens = sum(len(each.tokens) // 4 for each in group.completions)
        self.spool.add(stored.digest, stored.raw, version=0, slot=slot, tokens=tokens, reward=0.25, now=NOW + slot)
        self.spool.mark_stored([stored.digest])
        return stored.digest

    def judge(self, name: bytes, slot: int, state: ReceiptState, reason: str = "") -> Receipt:
        tokens = 16 if state is ReceiptState.VERIFIED else 0
        receipt = Receipt(name, ME.public_key, 0, slot, int(state), reason, tokens, 2, 0.5)
        assert self.spool.settle(receipt, step=3, sent_ms=int(NOW * 1000) + 60_000)
        return receipt

    def command(self, name: str, *arguments: object) -> Any:
        return invoke("receipts", name, "unit", *arguments, "--home", self.path)


def _forged(group: RolloutGroup) -> RolloutGroup:
    """Another first token than the seeded one."""
    tokens = bytearray(group.completions[0].tokens)
    tokens[0] ^= 1
    return with_completion(group, 0, tokens=bytes(tokens))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.spool.close()
    made.run.close()


def test_groups_are_listed_newest_first_with_credit(home: Home) -> None:
    names = [home.sample(slot) for slot in range(3)]
    home.judge(names[0], 0, ReceiptState.VERIFIED)
    home.judge(names[1], 1, ReceiptState.REJECTED, "seed_mismatch")
    document = json_of("receipts", "list", "unit", "--home", home.path)
    assert set(document) | set(document["groups"][0]) == json_keys("p2prl receipts list")
    assert [row["group"] for row in document["groups"]] == [name.hex() for name in reversed(names)]
    open_, rejected, verified = document["groups"]
    assert (open_["state"], open_["credited_tokens"], open_["judged_at"]) == ("delivered", 0, None)
    assert (rejected["state"], rejected["reason"], rejected["credit"]) == ("rejected", "seed_mismatch", 0)
    assert verified["credited_tokens"] == 16
    assert verified["credit"] == pytest.approx(16 * 2 * home.run.manifest.parameters / 1e15)
    assert verified["in_escrow"]
    assert (verified["learner_step"], verified["learner_reward"]) == (3, 0.5)
    assert {(row["state"], row["groups"]) for row in document["counts"]} == {
        ("delivered", 1), ("rejected", 1), ("verified", 1)
    }  # fmt: skip
    shown = json_of("receipts", "list", "unit", "--limit", 1, "--home", home.path)
    assert [row["group"] for row in shown["groups"]] == [names[2].hex()]


def test_only_the_newest_32_credited_groups_are_in_escrow(home: Home) -> None:
    for number in range(34):
        name = bytes([number]) * 32
        home.spool.add(name, b"x", version=0, slot=number, tokens=5, reward=None, now=NOW)
        home.judge(name, number, ReceiptState.VERIFIED)
    rows = json_of("receipts", "list", "unit", "--limit", 40, "--home", home.path)["groups"]
    assert sorted(row["slot"] for row in rows if not row["in_escrow"]) == [0, 1]


def test_an_explanation_names_the_reason_the_figures_and_what_to_do(home: Home) -> None:
    name = home.sample(0)
    home.judge(name, 0, ReceiptState.REJECTED, "withheld_slots")
    result = home.command("explain", name.hex()[:8])
    why, what = advice("rejected", "withheld_slots")
    assert result.exit_code == 0
    assert why in result.stdout
    assert what in result.stdout
    assert "at its step 3" in result.stdout


def test_the_stored_ledger_adds_the_signed_receipt_and_the_verdicts(home: Home) -> None:
    name = home.sample(0)
    receipt = home.judge(name, 0, ReceiptState.VERIFIED)
    verdict = Verdict(name, ME.public_key, 0, False, "seed_mismatch", 16, 3, 4.5)
    check = VerdictCheck(VALIDATOR.public_key, name, int(CheckOutcome.CONTRADICTED), 16)
    bodies = [
        (home.run.learner, Receipts(7, (receipt,))),
        (VALIDATOR, verdict),
        (home.run.learner, VerdictChecks((check,))),
    ]
    board = home.path / "board-1" / home.folder.name
    store, head = LedgerStore(board / "ledger.db", run=home.run.run), ledger_chain.GENESIS
    for height, (author, body) in enumerate(bodies):
        entry, head = ledger_chain.append(height, head, seal(author, body, run=home.run.run, now=NOW))
        store.append(height, [entry])
    store.close()
    document = json_of("receipts", "explain", "unit", name.hex(), "--home", home.path)
    assert set(document) | set(document["ledger"]) == json_keys("p2prl receipts explain")
    assert document["ledger"]["receipt"]["entry"] == 0
    assert document["ledger"]["receipt"]["step"] == 7
    (seen,) = document["ledger"]["verdicts"]
    assert (seen["validator"], seen["passed"], seen["mismatched"]) == (VALIDATOR.peer_id, False, 3)
    assert seen["outcome"] == CheckOutcome.CONTRADICTED


@pytest.mark.parametrize(
    ("forged", "state", "reason", "agreement"),
    [
        (False, ReceiptState.VERIFIED, "", "agrees"),
        (False, ReceiptState.REJECTED, "seed_mismatch", "disagrees"),
        (False, ReceiptState.EXPIRED, "too_stale", "undecided"),
        (True, ReceiptState.REJECTED, "seed_mismatch", "agrees"),
        (True, ReceiptState.VERIFIED, "", "disagrees"),
    ],
)
def test_a_replay_is_compared_with_the_learners_receipt(
    home: Home, forged: bool, state: ReceiptState, reason: str, agreement: str
) -> None:
    name = home.sample(0, forged=forged)
    home.judge(name, 0, state, reason)
    arguments = (name.hex(), "--device", "cpu", "--threads", 1, "--no-confinement", "--json")
    result = home.command("replay", *arguments)
    assert result.exit_code == (1 if agreement == "disagrees" else 0), result.output
    document = json.loads(result.stdout)
    assert set(document) == json_keys("p2prl receipts replay")
    assert document["passed"] is not forged
    assert document["reason"] == ("seed_mismatch" if forged else "")
    assert document["agreement"] == agreement
    assert document["tokens"] == sum(len(c.tokens) // 4 for c in home.run.group(home.policy, ME, 0).completions)


@pytest.mark.parametrize(
    ("forged", "reason", "found"),
    [
        (False, "seed_mismatch", Replayed.RIGHT),
        (False, "unknown_policy", Replayed.RIGHT),
        (True, "seed_mismatch", Replayed.WRONG),
        (False, "engine_mismatch", Replayed.UNDECIDED),
    ],
)
def test_a_refused_group_is_replayed_from_the_volunteers_own_folder(
    home: Home, forged: bool, reason: str, found: Replayed
) -> None:
    replay = refused_group_replay(home.folder, make_tools)
    kept = home.spool.bytes_of(home.sample(0, forged=forged))
    assert kept is not None
    assert replay(*kept, reason) is found


def test_without_the_weights_or_the_memory_no_refused_group_is_replayed(home: Home) -> None:
    kept = home.spool.bytes_of(home.sample(0))
    assert kept is not None

    def too_large(run: OwnRun, files: dict[str, Path]) -> ReplayTools:
        raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 90000000000 bytes")

    assert refused_group_replay(home.folder, too_large)(*kept, "seed_mismatch") is Replayed.IMPOSSIBLE
    home.weights_file().unlink()
    assert refused_group_replay(home.folder, make_tools)(*kept, "seed_mismatch") is Replayed.IMPOSSIBLE


def make_tools(run: OwnRun, files: dict[str, Path]) -> ReplayTools:
    return prepare_replay(run.manifest, files, run=run.run, device=torch.device("cpu"), scores=False)


def test_evidence_is_shown_and_checked(home: Home) -> None:
    receipts, groups = [], []
    for slot in range(2):
        name = home.sample(slot)
        groups.append(home.spool.bytes_of(name))
        receipts.append(home.judge(name, slot, ReceiptState.REJECTED, "seed_mismatch"))
    signed = seal(home.run.learner, Receipts(7, tuple(receipts)), run=home.run.run, now=NOW)
    cases = tuple(
        Case(receipts=signed, group=group[0], body=group[1], replay="right") for group in groups if group is not None
    )
    path = home.path / "refused.evidence"
    write_evidence(path, Evidence(manifest=home.run.manifest_raw, judged=9, refused=8, cases=cases))
    document = json_of("receipts", "evidence", path)
    assert set(document) | set(document["groups"][0]) == json_keys("p2prl receipts evidence")
    assert (document["run"], document["judged"], document["refused"]) == ("unit", 9, 8)
    assert document["learner"] == home.run.learner.peer_id
    assert [(row["volunteer"], row["slot"], row["reason"], row["learner_step"]) for row in document["groups"]] == [
        (ME.peer_id, 0, "seed_mismatch", 7),
        (ME.peer_id, 1, "seed_mismatch", 7),
    ]
    shown = invoke("receipts", "evidence", path)
    assert shown.exit_code == 0
    assert "2 groups with the learner's rejection of each" in shown.stdout
    assert shown.stdout.count("the volunteer's replay found it right") == 2
    path.write_bytes(path.read_bytes()[:-1])
    error = invoke("receipts", "evidence", path).exception
    assert isinstance(error, ConfigError)


def refusal(home: Home, name: str, *arguments: object) -> P2PRLError:
    error = home.command(name, *arguments).exception
    assert isinstance(error, P2PRLError)
    assert error.remedy
    return error


def test_a_replay_imports_nothing_large_before_it_is_confined() -> None:
    program = (
        "import sys, p2prl.cli.commands.receipts_replay\n"
        "heavy = {'torch', 'transformers', 'numpy', 'hivemind'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    assert outcomes([program]) == [""]


def test_what_is_gone_is_said_in_a_sentence(home: Home) -> None:
    name = home.sample(0)
    home.weights_file().unlink()
    gone = refusal(home, "replay", name.hex(), "--no-confinement")
    assert isinstance(gone, MachineError)
    assert "version 0 of the policy is not on this machine any more" in str(gone)
    home.spool.limit(0)
    home.spool.expire(now=NOW)
    dropped = refusal(home, "replay", name.hex())
    assert isinstance(dropped, MachineError)
    assert "are not here any more" in str(dropped)


def test_names_that_fit_nothing_are_refused(home: Home) -> None:
    home.sample(0)
    assert "begins with 0000" in str(refusal(home, "explain", "0000"))
    for digits in ("12", "xyzzy"):
        assert isinstance(refusal(home, "replay", digits), ConfigError)
    assert isinstance(refusal(home, "explain", "0000", "--live"), ConfigError)
    missing = invoke("receipts", "list", "another", "--home", home.path).exception
    assert isinstance(missing, ConfigError)


def test_damaged_weights_are_not_judged_with(home: Home) -> None:
    name = home.sample(0)
    weights = bytearray(home.weights_file().read_bytes())
    weights[-1] ^= 1
    home.weights_file().write_bytes(bytes(weights))
    error = refusal(home, "replay", name.hex(), "--device", "cpu", "--no-confinement")
    assert "damaged" in str(error)


@pytest.mark.parametrize("reason", [*RejectionReason, *GIVEN_UP])
def test_every_reason_has_a_sentence_and_advice(reason: str) -> None:
    why, what = advice("rejected", reason)
    assert why.endswith(".")
    assert what.endswith(".")
    assert str(reason) not in why


def test_an_unknown_reason_is_not_repeated() -> None:
    assert "<b>" not in "".join(advice("rejected", "<b>"))
