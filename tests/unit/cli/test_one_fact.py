"""One fact, one figure: the screens of a run agree at one moment, and with a recount of its ledger and journal."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.cli.commands.open_ledger import ledger_of_run
from p2prl.cli.views.worker_screen import WorkerScreen
from p2prl.client.spool import Spool, SpoolConfig
from p2prl.config.network_options import remember_run
from p2prl.config.worker_folder import write_status
from p2prl.net.storage.key_file import create_identity
from p2prl.protocol.ledger_messages import Receipt, ReceiptState
from p2prl.quantity_text import credit
from p2prl.scoreboard.certificate import issue, read, recount
from p2prl.scoreboard.documents.ranked_leaderboard import contributor_document
from p2prl.scoreboard.ledger_dump import verify_source
from p2prl.scoreboard.web.page import PageRequest, render_contributor
from p2prl_lab.testing.sample_ledgers import LedgerWriter, identity, receipt
from tests.unit.cli.invocation import invoke, json_of

LEARNER, MINE, OTHERS = identity("learner"), identity("mine"), [identity("ann"), identity("bob")]
GOOD, BAD = ReceiptState.VERIFIED, ReceiptState.REJECTED

Work = Sequence[tuple[int, ReceiptState, int]]
"""Groups in the order of the ledger: whose (0 is this machine), what came of it, and its tokens."""

works = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([GOOD, GOOD, GOOD, BAD]), st.integers(1, 5_000)),
    min_size=1,
    max_size=40,
).filter(lambda work: any(who == 0 and state is GOOD for who, state, _ in work))


def receipts_of(work: Work) -> list[Receipt]:
    keys = [MINE, *OTHERS]
    return [
        receipt(number, keys[who], tokens=tokens)
        if state is GOOD
        else receipt(number, keys[who], state=int(BAD), reason="seed_mismatch", tokens=0, completions=0, reward=0.0)
        for number, (who, state, tokens) in enumerate(work)
    ]


@contextmanager
def run_and_home(folder: Path, work: Work, *, version: int) -> Iterator[tuple[Path, Path, LedgerWriter]]:
    """The folder of a finished run, whose last version came after its last update, and a volunteer's home."""
    run, home, writer = folder / "run", folder / "home", LedgerWriter()
    create_identity(run / "key.json", LEARNER)
    (run / "run.manifest").write_bytes(writer.manifest_raw)
    place = home / "seat-1" / writer.run.hex()[:16]
    remember_run(place, writer.manifest_raw)
    with closing(Spool(place / "spool.db", SpoolConfig())) as spool:
        for step, judged in enumerate(receipts_of(work)):
            writer.now += 30
            writer.receipts(step, judged)
            if judged.peer == MINE.public_key:
                spool.add(
                    judged.group, b"x", version=0, slot=step, tokens=judged.tokens + 3, reward=0.5, now=writer.now
                )
                assert spool.settle(judged, step=step, sent_ms=int(writer.now * 1000))
        write_status(
            place / "status.json",
            {
                "role": "volunteer", "run": writer.manifest.name, "peer": MINE.peer_id, "state": "finished",
                "groups": spool.counts(), "verified_tokens": spool.verified_tokens(), "time": writer.now,
            },
        )  # fmt: skip
    head = writer.signed_head()
    writer.write_journal(run / "journal.db", versions=version + 1, signed_head=head).close()
    last = {"step": float(version), "version": float(version - 1), "reward": 0.25, "time": writer.now}
    (run / "metrics.jsonl").write_text(json.dumps(last) + "\n")
    ended = {
        **last,
        "role": "learner",
        "state": "finished",
        "finished": True,
        "version": version,
        "time": writer.now + 9,
    }
    write_status(run / "status.json", ended)
    yield run, home, writer


@given(works, st.integers(1, 60))
@settings(max_examples=12)
def test_board_certificate_me_and_status_show_the_recount_of_one_moment(work: Work, version: int) -> None:
    # The oracle: plain sums over what the learner has signed.
    mine = [judged for judged in receipts_of(work) if judged.peer == MINE.public_key]
    tokens = {key.public_key: 0 for key in (MINE, *OTHERS)}
    for judged in receipts_of(work):
        tokens[judged.peer] += judged.tokens
    verified = sum(judged.state == GOOD for judged in mine)
    rank = 1 + sum(other > tokens[MINE.public_key] for other in tokens.values())
    with (
        tempfile.TemporaryDirectory() as folder,
        run_and_home(Path(folder), work, version=version) as (run, home, made),
    ):
        owed = tokens[MINE.public_key] * 2 * made.manifest.parameters / 1e15
        with ledger_of_run(run) as board:
            snapshot = board.snapshot()
            row = contributor_document(snapshot, MINE.peer_id)
            assert row is not None
            assert (row.verified_tokens, row.verified_groups) == (tokens[MINE.public_key], verified)
            assert (row.pass_rate.passed, row.pass_rate.checked) == (verified, len(mine))
            assert (row.credit, snapshot.policy_version) == (owed, version)
            assert row.rank == rank or list(tokens.values()).count(tokens[MINE.public_key]) > 1
            page = render_contributor(snapshot, MINE.peer_id, PageRequest())
            paper = issue(snapshot, MINE.peer_id, LEARNER, now_ms=int(made.now * 1000))
            recount(read(paper.text).certificate, snapshot)
            (counted,) = (person for person in verify_source(board).people if person.id == MINE.peer_id)
        certificate = paper.certificate
        for shown in (counted, certificate):
            assert (shown.rank, shown.verified_tokens, shown.credit) == (row.rank, row.verified_tokens, row.credit)
        assert certificate.receipts_root == row.receipts_root

        told = json_of("me", "--home", home)
        assert (told["tokens"], told["groups_verified"], told["credit"]) == (row.verified_tokens, verified, row.credit)
        assert page is not None
        for text in (page, invoke("me", "--home", home).stdout):
            assert credit(row.credit) in text, "one formatter"
        (worker,) = json_of("status", "--home", home)["workers"]
        assert worker["verified_tokens"] == row.verified_tokens
        assert worker["groups"].get("verified", 0) == verified
        assert "rank" not in str(WorkerScreen(worker, now=made.now)), "the board's alone"
        assert f"{row.verified_tokens:,} token" in invoke("status", "--home", home).stdout

        (learner,) = json_of("status", run)["workers"]
        file: dict[str, Any] = json.loads((run / "status.json").read_text())
        assert {key: learner[key] for key in file if key not in ("pid", "resident_bytes", "run")} == {
            key: value for key, value in file.items() if key not in ("pid", "resident_bytes", "run")
        }
        assert (learner["version"], learner["finished"]) == (snapshot.policy_version, True)
        assert f"v{version}" in invoke("status", run).stdout


def test_a_line_of_metrics_that_is_newer_than_the_status_file_wins(tmp_path: Path) -> None:
    """A crash came between the two: the newest fact is the one of the later step."""
    with run_and_home(tmp_path, [(0, GOOD, 5)], version=7) as (run, _, _):
        newer = {"step": 9.0, "version": 8.0, "reward": 0.75, "time": 2e9}
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(newer) + "\n")
        (learner,) = json_of("status", run)["workers"]
        assert {key: learner[key] for key in newer} == newer
