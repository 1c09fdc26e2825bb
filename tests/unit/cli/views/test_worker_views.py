"""Views of workers: run, identity, progress and credit, and no figure before it was measured."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from p2prl.cli.commands.validate_worker import audit_line
from p2prl.cli.views.volunteer_view import SmoothRate, progress_document, progress_line, startup_phase
from p2prl.cli.views.worker_introduction import seeder_introduction, validator_introduction, volunteer_introduction
from p2prl.cli.views.worker_screen import WorkerScreen
from p2prl.client.progress import Progress
from p2prl.config.requirements import Requirements
from p2prl.config.worker_folder import platform_home
from p2prl.models.engines.engine_names import ChosenEngine
from p2prl.plain_text import wrapped
from p2prl.protocol.identity import Identity
from p2prl.protocol.manifests import DataSet, RunFile, RunManifest, TaskShare, blob_of
from p2prl.scoreboard.display_names import display_name
from p2prl.tasks.scorers.spec import Reward, Scoring, scoring_spec
from p2prl.validator.service import Audit
from p2prl_lab.testing.sample_ledgers import manifest

IDENTITY = Identity.generate(bytes(range(16)))
DISK = 9_000_000
NEEDS = Requirements(
    files_bytes=20_000, data_bytes=0, weights_bytes=1_500_000, disk_bytes=7_000_000, memory_bytes=3_100_000_000
)
SCORING = scoring_spec(Scoring(rewards=(Reward(scorer="exact"),)))
ENGINE = ChosenEngine("transformers", "the only one here")
IDLE = Progress("connecting", -1, -1, {}, {}, {}, 0, None, 0.0, (-1, 0, 0), 0, 0, 0, 0, 0)
BUSY = Progress(
    "sampling",
    7,
    8,
    {"learner": 1, "volunteer": 2},
    {"verified": 3, "generated": 1},
    {},
    9,
    0.0,
    1234.0,
    (8, 2, 4),
    1,
    3,
    0,
    0,
    0,
    step=14,
)


def panel(progress: Progress, rate: float) -> str:
    output = io.StringIO()
    worker = {"run": "chain", "peer": IDENTITY.peer_id, **progress_document(progress), "tokens_per_s": rate}
    Console(file=output, width=80).print(WorkerScreen(worker, now=0.0))
    return output.getvalue()


def test_compared_rewards_are_shown_with_those_that_prove_nothing() -> None:
    bare = Audit(0, 0, 0, 0, 0, 3)
    assert "rewards" not in audit_line(bare)
    assert audit_line(replace(bare, rewards_unclear=2)).endswith("rewards 0 agree, 2 unclear")
    both = audit_line(replace(bare, rewards_agreed=1, rewards_disputed=4))
    assert both.endswith("rewards 1 agree, 4 DISAGREE")


def test_checks_of_verdicts_are_shown_once_there_are_some() -> None:
    bare = Audit(0, 0, 0, 0, 0, 3)
    assert "checked" not in audit_line(bare)
    assert audit_line(replace(bare, checks_agreed=5)).endswith("checked 5 agree")
    all_kinds = replace(bare, checks_agreed=5, checks_contradicted=2, checks_failed=1)
    assert audit_line(all_kinds).endswith("checked 5 agree, 2 disagree, 1 NOT PROVEN")


def test_unmeasured_figures_are_not_shown() -> None:
    for text in (progress_line(IDLE, 0.0), panel(IDLE, 0.0), audit_line(Audit(0, 0, 0, 0, 0, -1))):
        assert "v-1" not in text
        assert "0.00" not in text
        assert "0 tokens/s" not in text
        assert "no weights yet" in text


def test_measured_figures_are_shown() -> None:
    line = progress_line(BUSY, 1234.4)
    assert line.startswith(
        "v7 (v8 2/4 chunks)  sampling  verified 3 (9 tokens)  waiting 1  rejected 0  reward 0.00  1,234 tokens/s"
    )
    shown = panel(BUSY, 1234.4)
    assert "v8 is out" in shown
    assert "2 of 4 chunks here" in shown
    assert "75% from volunteers" in shown
    assert "1 learner, 2 volunteers" in shown
    assert "the run is at learner step 14" in shown
    assert "3 groups verified, 9 tokens credited" in shown
    assert "the newest 3 in escrow until more are verified or the run ends" in shown
    assert "0 B of weights sent to others" in shown
    assert "Ctrl-C ends after the current groups, twice at once" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_rejections_are_explained_in_words() -> None:
    shown = " ".join(panel(replace(BUSY, reasons={"too_stale": 3, "[red]x": 2, "not_sendable": 1}), 9.0).split())
    assert "3: The policy that sampled the group was too old" in shown
    assert "2: A reason that this release does not know." in shown
    assert "1: No peer" not in shown, "the two most frequent are enough"
    assert "p2prl receipts explain" in shown
    assert "[red]" not in shown


def test_sampling_without_a_learner_looks_different() -> None:
    alone = replace(BUSY, peers={"volunteer": 2})
    assert "sampling; learner unreachable, groups wait on disk" in progress_line(alone, 9.0)
    assert "unreachable; finished groups wait on disk" in panel(alone, 9.0)
    heard = replace(alone, hears_learner=True)
    for each in (BUSY, heard):
        assert "unreachable" not in progress_line(each, 9.0)
        assert "unreachable" not in panel(each, 9.0)
    assert "online, no learner" in panel(alone, 9.0)
    assert "online, no learner" not in panel(heard, 9.0)


def test_startup_phases_are_shown_until_the_first_group() -> None:
    states = ["looking for the run", "fetching the run's files", "waiting for the first weights", "sampling"]
    phases = [startup_phase(replace(IDLE, state=state)) for state in states]
    assert [phase and phase[0] for phase in phases] == [
        "finding the run",
        "downloading the run's files",
        "downloading the weights",
        "sampling the first groups",
    ]
    fetching = startup_phase(replace(IDLE, state="waiting for the first weights", fetching=(3, 2, 7)))
    assert fetching == ("downloading the weights", "2 of 7 chunks")
    assert startup_phase(BUSY) is None
    assert startup_phase(replace(IDLE, state="the run is finished")) is None


def test_download_of_files_is_shown_in_bytes() -> None:
    state = "fetching the run's files"
    assert startup_phase(replace(IDLE, state=state)) == ("downloading the run's files", "")
    halfway = startup_phase(replace(IDLE, state=state, files=(600_000_000, 1_200_000_000)))
    assert halfway == ("downloading the run's files", "600 MB of 1.2 GB")


def test_a_run_of_data_shows_no_reward() -> None:
    assert "reward" in progress_line(replace(BUSY, reward_recent=0.5), 1.0)
    assert "reward" not in progress_line(replace(BUSY, reward_recent=None), 1.0)


def test_introductions_say_what_data_is_downloaded_and_whose_code_runs() -> None:
    data = replace(NEEDS, data_bytes=1_200_000_000)
    blob = blob_of(b"x", 4096)
    own = DataSet("own", 1, blob, blob, SCORING, blob)
    plain = DataSet("plain", 1, blob, blob, SCORING)
    run = msgspec.structs.replace(manifest(), data_sets=(own, plain))
    home = Path("/home/seat-1")
    volunteer = "\n".join(volunteer_introduction(run, data, DISK, IDENTITY, home, "cpu", ENGINE, {}))
    assert "1.2 GB of the download are rows of data" in volunteer
    assert "Nobody sends code to your machine" in volunteer
    cautious = "\n".join(validator_introduction(run, data, DISK, IDENTITY, home, "cpu", 0.25))
    assert "Nobody sends code" in cautious
    assert "scores own: it does not run here" in cautious
    assert "--run-scorer" in cautious
    agreed = "\n".join(validator_introduction(run, data, DISK, IDENTITY, home, "cpu", 0.25, run_scorer=True))
    assert "Nobody sends code" not in agreed
    assert "scores own: it runs here, in a sandbox" in agreed
    built_in = msgspec.structs.replace(run, data_sets=(plain,))
    assert "Scorer" not in "\n".join(validator_introduction(built_in, data, DISK, IDENTITY, home, "cpu", 0.25))


def test_introductions_name_the_programs_that_a_run_brings() -> None:
    files = (RunFile("game.wasm", blob_of(b"x" * 899, 4096)),)
    run = msgspec.structs.replace(manifest(), files=files, tasks=(TaskShare("game", 1.0),))
    home = Path("/home/seat-1")
    for lines in (
        volunteer_introduction(run, NEEDS, DISK, IDENTITY, home, "cpu", ENGINE, {}),
        validator_introduction(run, NEEDS, DISK, IDENTITY, home, "cpu", 0.25),
    ):
        text = "\n".join(lines)
        assert "Programs  game (899 B): WebAssembly that the run brings" in text
        assert "no files,\n            network or clock, 8.4 MB of memory, and 10,000,000 instructions" in text
        assert "No other code comes to your machine." in text
        assert "Nobody sends code" not in text
    assert "Nobody sends code that runs on your machine" in "\n".join(seeder_introduction(run, NEEDS, DISK))


def test_a_seeder_is_told_what_it_stores() -> None:
    text = "\n".join(seeder_introduction(manifest(), NEEDS, DISK))
    assert "9.0 MB at most" in text
    assert manifest().goal in text


def test_an_introduction_says_once_how_large_a_model_is() -> None:
    named = msgspec.structs.replace(manifest(), parameters=1_234)
    unnamed = msgspec.structs.replace(named, base_model="an unnamed gpt2 of 1,234 parameters")
    for run in (named, unnamed):
        assert "\n".join(seeder_introduction(run, NEEDS, DISK)).count("1,234 parameters") == 1


def test_introductions_name_run_cost_identity_and_key() -> None:
    run: RunManifest = manifest()
    volunteer = "\n".join(
        volunteer_introduction(run, NEEDS, DISK, IDENTITY, Path("/my home/seat-2"), "cpu", ENGINE, {})
    )
    validator = "\n".join(validator_introduction(run, NEEDS, DISK, IDENTITY, Path("/my home/validator-1"), "cpu", 0.25))
    for text, seat in ((volunteer, "seat-2"), (validator, "validator-1")):
        assert run.goal in text
        assert run.licence in text
        assert run.content_policy in text
        assert all(
            cost in text
            for cost in ("1.5 MB", "9.0 MB at most", "9.0 MB for the first policy, 3.0 MB for a newer one", "3.1 GB")
        )
        assert display_name(IDENTITY.public_key) in text
        assert f"({IDENTITY.peer_id[-8:]})" in text, "as on the screen that follows"
        assert f"p2prl key backup --seat {seat} --home '/my home'" in text
    default = volunteer_introduction(run, NEEDS, DISK, IDENTITY, platform_home() / "seat-1", "cpu", ENGINE, {})
    assert any(line.endswith("p2prl key backup --seat seat-1") for line in default)
    assert any(line.endswith("p2prl limits yield=games battery=never") for line in default)
    assert "p2prl limits yield=games battery=never --home '/my home'" in volunteer
    on_card = volunteer_introduction(run, NEEDS, DISK, IDENTITY, platform_home() / "seat-1", "cuda", ENGINE, {})
    assert any(line.endswith("battery=never gpu.temp=75C") for line in on_card)
    own = volunteer_introduction(
        run, NEEDS, DISK, IDENTITY, platform_home() / "seat-1", "cuda", ENGINE, {"idle": "10m", "ram": "8GB"}
    )
    assert "  Limits    idle=10m, ram=8GB" in own
    assert "sample answers on cpu" in volunteer
    assert "transformers, the only one here" in volunteer
    assert "generated tokens" in volunteer
    assert "replay 25%" in validator
    assert "signed verdicts" in validator
    assert "generated tokens" not in validator


def test_the_shown_rate_is_smooth() -> None:
    rate = SmoothRate()
    assert rate.update(0.0, 0.0) == 0.0
    assert rate.update(100.0, 5.0) == 100.0
    assert 100.0 < rate.update(1000.0, 5.25) < 120.0
    shown = [rate.update(1000.0, 5.25 + second) for second in range(1, 121)]
    assert shown == sorted(shown)
    assert shown[-1] == pytest.approx(1000.0, rel=1e-3)


def test_what_a_volunteer_is_told_first_fits_a_terminal_of_80_by_24() -> None:
    """With two lines about confinement and self-test and four phases of the start below it, all of it can be read."""
    run, home = manifest(), Path("/home/ada/p2prl/seat-1")
    told = [wrapped(line, 80) for line in volunteer_introduction(run, NEEDS, DISK, IDENTITY, home, "cpu", ENGINE, {})]
    assert sum(map(len, told)) <= 24 - 2 - 4
