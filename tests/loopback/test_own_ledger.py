"""Two ledgers of one run, by real processes: the learner's, and that of a validator which is killed in between."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from p2prl.net.storage.key_file import load_or_create_identity
from p2prl.protocol.ledger_messages import Receipt, Receipts, ReceiptState
from p2prl.scoreboard.ledger.journal_reader import JournalReader
from p2prl.scoreboard.ledger.known_run import open_run_manifest
from p2prl_lab.testing.run_audit import recorded_steps
from p2prl_lab.testing.swarm_processes import SwarmProcesses, kill_tree, wait_until
from tests.command_doc import json_keys
from tests.loopback.program import UNHURRIED, p2prl

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(1200)]


def test_a_validator_keeps_receipts_of_its_own_over_a_kill(warm_run: Path, tmp_path: Path) -> None:
    swarm = SwarmProcesses(tmp_path / "terminals", forks=True)
    home, run = tmp_path / "home", shutil.copytree(warm_run, tmp_path / "runs" / "mine")
    with swarm.running():
        learner = swarm.start("learner", "learn", str(run), "--updates", "0", "--json", home=home)
        link = wait_until(lambda: (run / "link").exists() and (run / "link").read_text(), seconds=60, what="a link")
        validator = swarm.start("validator", "validate", link.strip(), "--own-ledger", home=home)
        volunteer = swarm.start("join", "join", link.strip(), *UNHURRIED, home=home)
        wait_until(lambda: status(home).get("own_receipts", 0) >= 8, seconds=150, what="eight receipts")
        kill_tree(validator)
        (folder,) = home.glob("validator-1/*/")
        before = receipts(folder, run)
        swarm.start_again(validator)
        wait_until(
            lambda: status(home).get("own_receipts", 0) >= len(before) + 8, seconds=150, what="receipts after the kill"
        )
        wait_until(lambda: recorded_steps(run) >= 2, seconds=120, what="two updates")
        shown = json.loads(p2prl("status", "--home", str(home), "--json").stdout)["workers"]
        assert json_keys("p2prl validate") <= set(next(row for row in shown if row["role"] == "validator"))
        for role in (validator, volunteer, learner):
            role.process.send_signal(signal.SIGINT)
            assert role.wait(60) == 130, role.log[-2000:]

    key = load_or_create_identity(folder.parent / "key.json")
    own = receipts(folder, run)
    assert own[: len(before)] == before, "what it had signed stays"
    assert len({(receipt.peer, receipt.slot) for receipt in own}) == len({r.group for r in own}) == len(own)
    paid = {r.group: r for r in learners(run) if r.state == ReceiptState.VERIFIED}
    both = [receipt for receipt in own if receipt.group in paid]
    assert len(both) >= 8
    for receipt in both:
        theirs = paid[receipt.group]
        assert (receipt.peer, receipt.slot, receipt.tokens) == (theirs.peer, theirs.slot, theirs.tokens)
        assert receipt.reward == pytest.approx(theirs.reward, abs=1e-6)

    found = json.loads(p2prl("ledger", "verify", folder, "--json").stdout)
    assert (found["signer"], found["validators_own"], found["whole"]) == (key.peer_id, True, True)
    assert found["totals"]["verified_groups"] == len(own)
    overview = json.loads(p2prl("board", folder, "--json").stdout)["run"]["ledger"]
    assert (overview["signer"], overview["validators_own"]) == (key.peer_id, True)
    dump = tmp_path / "own.ledger"
    assert p2prl("ledger", "dump", folder, dump).returncode == 0
    assert p2prl("ledger", "verify", dump, "--validator", key.peer_id).returncode == 0
    refused = p2prl("ledger", "verify", dump)
    assert refused.returncode != 0, "it is not the learner's"
    assert "Traceback" not in refused.stderr


def status(home: Path) -> dict[str, Any]:
    """The validator's newest status; empty before the first."""
    return next((json.loads(path.read_text()) for path in home.glob("validator-1/*/status.json")), {})


def receipts(folder: Path, run: Path) -> list[Receipt]:
    """Every receipt of the validator's own ledger, each entry checked against the validator's key."""
    key = load_or_create_identity(folder.parent / "key.json").public_key
    return _followed(folder / "own-ledger.db", run, validator=key)


def learners(run: Path) -> list[Receipt]:
    """Every receipt of the learner's ledger."""
    return _followed(run / "journal.db", run)


def _followed(path: Path, run: Path, *, validator: bytes = b"") -> list[Receipt]:
    fold = open_run_manifest((run / "run.manifest").read_bytes(), validator=validator).new_fold()
    reader, found = JournalReader(path), list[Receipt]()
    while entries := reader.entries(fold.height, 256):
        for body in (fold.follow(raw).body for raw in entries):
            found += body.receipts if isinstance(body, Receipts) else ()
    reader.close()
    return found
