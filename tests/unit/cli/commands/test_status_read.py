"""`p2prl status`: words instead of keys, and whoever holds the seat is who runs, whatever number a file names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from p2prl.cli.commands.status import status
from p2prl.cli.commands.worker_session import given_text, pending_text
from p2prl.cli.views.status_view import worker_lines
from p2prl.config.worker_folder import WorkerFolder, claim_worker_folder, holder_of, try_lock, write_status
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import Identity
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.scoreboard.display_names import display_name
from p2prl.time_text import age_text

NOW = 1_800_000_000.0
IDENTITY = Identity.generate(bytes(range(16)))
VOLUNTEER = {
    "run": "my-run", "role": "volunteer", "seat": "seat-2", "peer": IDENTITY.peer_id, "time": NOW - 300, "pid": 7,
    "state": "sampling", "running": True, "version": 7, "announced_version": 8, "tokens_per_s": 1234.0,
    "groups": {"verified": 1_100, "generated": 1, "delivered": 2, "rejected": 4, "expired": 5},
    "reasons": {"seed_mismatch": 4}, "reward_recent": 0.8123, "peers": {"learner": 1, "volunteer": 3},
    "weight_bytes_received": 4_000_000, "weight_bytes_from_peers": 3_000_000, "weight_bytes_over_circuits": 400_000,
    "weight_bytes_sent": 500_000,
    "resident_bytes": 400_000_000, "network_resident_bytes": 60_000_000, "network_daemon_bytes": 40_000_000,
}  # fmt: skip


def shown(worker: dict[str, Any]) -> str:
    return "\n".join(worker_lines(worker, now=NOW))


def test_volunteer_status_lines() -> None:
    text = shown(VOLUNTEER)
    assert text.splitlines()[0] == "my-run  volunteer seat-2  sampling"
    for words in (
        display_name(IDENTITY.public_key),
        "v7, v8 is out; 1,234 tokens/s",
        "1,100 verified, 3 waiting, 4 rejected, 5 too old",
        f"4: {RejectionReason.SEED_MISMATCH.explanation}",
        "0.81",
        "4.0 MB received, 75% from volunteers, 10% over circuits; 500 kB sent to others",
        "1 learner, 3 volunteers",
        "500 MB measured (400 MB of its own, 100 MB of the network)",
    ):
        assert words in text
    assert "{" not in text, "no key dump"


def test_a_standby_learner_says_what_it_holds() -> None:
    standby = {"run": "my-run", "role": "standby learner", "running": True, "state": "holds step 9; keeps step",
               "step": 9, "version": 4, "ledger_height": 70, "fetched_bytes": 2_500_000}  # fmt: skip
    assert shown(standby).splitlines() == [
        "my-run  standby learner  holds step 9; keeps step",
        "    holds     step 9, v4, 70 ledger entries",
        "    fetched   2.5 MB",
    ]
    nothing = {"run": "my-run", "role": "standby learner", "running": False, "time": NOW - 60, "fetched_bytes": 0}
    assert "holds     nothing yet" in shown(nothing)


def test_energy_is_shown_where_it_was_measured_alone() -> None:
    assert "energy" not in shown(VOLUNTEER)
    energy = {"of": ["card", "processor"], "watts": 143.4, "kwh": 0.3124, "tokens": 9, "tokens_per_kwh": 1_204_000,
              "total_kwh": 7.0, "total_tokens": 90, "cost": 0.0937, "currency": "EUR"}  # fmt: skip
    assert (
        "energy    143 W now; 0.312 kWh in this session, 0.09 EUR; 1,204,000 verified tokens a kWh."
        " Measured: card and processor, with all else that ran there"
    ) in shown({**VOLUNTEER, "energy": energy})
    assert "energy" not in shown({**VOLUNTEER, "energy": {**energy, "of": []}}), "of earlier sessions alone"
    bare = {"of": ["processor"], "watts": None, "kwh": 12.3456, "tokens_per_kwh": None}
    assert "energy    12.3 kWh in this session. Measured: processor," in shown({**VOLUNTEER, "energy": bare})


def test_a_lost_learner_is_shown() -> None:
    alone = {**VOLUNTEER, "peers": {"volunteer": 3}}
    assert "learner unreachable, groups wait on disk" in shown(alone)
    assert "unreachable" not in shown({**alone, "hears_learner": True})


def test_groups_without_a_verdict_are_explained_at_the_end() -> None:
    assert pending_text(VOLUNTEER).startswith("3 groups had no verdict")
    assert pending_text({"groups": {"verified": 9}}) == ""


@pytest.mark.parametrize(
    ("state", "words"), [("sampling", "not running, last report 5 min ago"), ("stopped", "stopped 5 min ago")]
)
def test_a_stopped_worker_is_shown_as_not_running(state: str, words: str) -> None:
    text = shown({**VOLUNTEER, "running": False, "state": state})
    assert text.splitlines()[0].endswith(words)
    assert "tokens/s" not in text
    assert "measured" not in text


def test_a_worker_that_ended_while_it_rested_had_weights() -> None:
    ended = {**VOLUNTEER, "version": -1, "resting": True, "running": False}
    assert "none in memory: it rested when it ended" in shown(ended)
    assert "no weights yet" not in shown(ended)
    assert "no weights yet" in shown({**ended, "resting": False})


def test_empty_status_shows_nothing() -> None:
    text = shown({"run": "r", "role": "volunteer", "running": True, "version": -1, "announced_version": -1})
    assert "no weights yet" in text
    assert "v-1" not in text
    assert "reward" not in text
    assert "none yet" in shown({"run": "r", "role": "learner", "running": False})


def test_validator_and_learner_have_their_own_figures() -> None:
    validator = {"role": "validator", "running": True, "version": 3, "groups_seen": 90, "groups_replayed": 20,
                 "verdicts_passed": 19, "verdicts_failed": 1, "groups_waiting": 2}  # fmt: skip
    assert "20 replayed of 90 seen: 19 passed, 1 failed; 2 waiting" in shown(validator)
    learner = {"role": "learner", "running": True, "state": "training", "step": 1_500.0, "version": 40, "reward": 0.5,
               "staleness_p50": 13, "staleness_max": 74, "groups": 16, "peers": 3}  # fmt: skip
    assert "1,500 of 2,000" in shown({**learner, "target_updates": 2_000})
    ranks = {"plan": "dp2pp2", "ranks": 4, "hosts": 1}
    assert "ranks     4, by plan dp2pp2" in shown({**learner, **ranks})
    assert "ranks     4 on 2 hosts, by plan dp2pp2" in shown({**learner, **ranks, "hosts": 2})
    assert "ranks     by plan dp2pp2" in shown({**learner, "plan": "dp2pp2"}), "of a learner of the release before"
    assert "ranks" not in shown({**learner, "plan": "1"})
    text = shown(learner)
    assert "dropped" not in text
    assert "dropped" not in shown({**learner, "lost/groups": 0})
    lost = {"lost/groups": 1_143, "lost/share": 0.25, "lost/tokens_ratio": 1.5, "lost/seconds_ratio": 4.0,
            "lost/reward_difference": -0.21}  # fmt: skip
    assert all(
        words in shown({**learner, **lost})
        for words in ("1,143 groups too old", "25%", "1.50 times as long", "4.0 times the time", "reward -0.21")
    )
    assert all(words in text for words in ("1,500\n", "v40", "0.500", "median 13, largest 74", "16 groups of 3"))


@pytest.mark.parametrize(("seconds", "text"), [(-4, "0 s"), (59, "59 s"), (60, "1 min"), (7_200, "2 h"), (2e5, "2 d")])
def test_ages_are_formatted(seconds: float, text: str) -> None:
    assert age_text(seconds) == text


def worker(home: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    status(None, home=home, as_json=True)
    (found,) = json.loads(capsys.readouterr().out)["workers"]
    assert isinstance(found, dict)
    return found


def working_seat(home: Path) -> tuple[WorkerFolder, Path]:
    seat = claim_worker_folder(home)
    path = seat.run_directory(Digest(bytes(32))) / "status.json"
    write_status(path, {"role": "volunteer", "state": "sampling"})
    return seat, path


def test_the_lock_tells_whether_a_worker_is_running(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seat, _ = working_seat(tmp_path)
    assert holder_of(seat.directory) == os.getpid()
    assert worker(tmp_path, capsys)["running"]
    assert worker(tmp_path, capsys)["seat"] == "seat-1"
    seat.release()
    # This very process is alive under the number in the file, and works no more.
    assert holder_of(seat.directory) is None
    assert not worker(tmp_path, capsys)["running"]
    claim_worker_folder(tmp_path).release()


def test_a_worker_on_another_run_is_not_shown_as_running(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seat, path = working_seat(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": os.getpid() + 1}))
    assert not worker(tmp_path, capsys)["running"]
    seat.release()


def test_reading_status_takes_no_worker_folder(tmp_path: Path) -> None:
    assert holder_of(tmp_path) is None
    lock = try_lock(tmp_path)
    assert lock is not None
    assert holder_of(tmp_path) == os.getpid()
    assert try_lock(tmp_path) is None
    lock.close()
    assert holder_of(tmp_path) is None
    again = try_lock(tmp_path)
    assert again is not None
    again.close()


def test_an_empty_home_and_a_damaged_status_file_are_handled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status(None, home=tmp_path, as_json=False)
    assert "p2prl join LINK" in capsys.readouterr().err
    (tmp_path / "seat-1" / "run").mkdir(parents=True)
    (tmp_path / "seat-1" / "run" / "status.json").write_text("[1, 2")
    status(None, home=tmp_path, as_json=False)
    assert "not running" in capsys.readouterr().out


def test_a_farewell_says_what_the_machine_gave() -> None:
    given = {"groups": {"verified": 12}, "verified_tokens": 18_433, "weight_bytes_sent": 2_100_000}
    expected = "You gave 12 verified groups of 18,433 tokens in this run so far, and 2.1 MB of weights uploaded since"
    assert given_text(given).startswith(expected)
    assert given_text({"groups": {}, "weight_bytes_sent": 0}) == ""
