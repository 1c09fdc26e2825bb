"""`p2prl plan`: the page's example as the program answers it, its JSON, and no torch."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from p2prl.errors import ConfigError
from p2prl.planning.card_speeds import CARDS
from p2prl.planning.model_shapes import MODELS
from p2prl.planning.rank_plan_record import HostChoice, KeptPlan, write_choice
from tests.command_doc import json_keys, section
from tests.unit.cli.invocation import invoke, json_of
from tests.unit.cli.light_imports import outcomes
from tests.unit.planning.observed_folder import write_run

PAGE = (Path(__file__).parents[3] / "docs" / "planning.md").read_text()
(FILE, FILE_7B), (ANSWER, ANSWER_7B) = (
    re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)[:2] for kind in ("toml", "text")
)


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize(("file", "answer"), [(FILE, ANSWER), (FILE_7B, ANSWER_7B)])
def test_the_page_shows_what_the_program_answers(file: str, answer: str, fleet: Path) -> None:
    fleet.write_text(file)
    result = invoke("plan", "--fleet", fleet)
    assert result.exit_code == 0
    assert "bottleneck" in answer
    assert answer.strip() in "\n".join(line.rstrip() for line in result.output.splitlines())


def test_home_cards_do_not_hold_7b_and_the_other_cards_of_the_host_do(fleet: Path) -> None:
    alone = json_of("plan", "--fleet", fleet, "--model", "7b")
    assert (alone["bottleneck"], alone["forecast"]["utilization"], alone["saturated"]) == ("memory", 0.0, False)
    assert alone["forecast"]["interval_s"] is None
    fleet.write_text(FILE + '[[machines]]\nname = "host"\ncount = 2\ncard = "h100"\ndownload_mbit = 1000\n')
    beside = json_of("plan", "--fleet", fleet, "--model", "7b", "--updates", 20)
    assert beside["saturated"]
    assert [row["groups_per_s"] > 0 for row in beside["machines"]] == [False, True]
    assert set(beside) == json_keys("p2prl plan")


def test_options_come_before_the_file(fleet: Path) -> None:
    found = json_of("plan", "--fleet", fleet, "--model", "1.5b", "--staleness", 32, "--updates", 8, "--seed", 4)
    assert (found["run"]["model"], found["run"]["staleness"], found["seed"]) == ("1.5b", 32, 4)
    assert found["forecast"]["updates"] == 8
    assert found["update"]["total_s"] == sum(found["update"][f"{part}_s"] for part in ("training", "replay", "copying"))


def test_a_missing_file_and_a_wrong_model_are_told(tmp_path: Path, fleet: Path) -> None:
    for arguments, told in ((("--fleet", tmp_path / "none"), "none"), (("--fleet", fleet, "--model", "6b"), "'6b'")):
        error = invoke("plan", *arguments).exception
        assert isinstance(error, ConfigError)
        assert told in str(error)
        assert error.remedy


def test_every_card_and_model_is_on_the_page() -> None:
    assert all(f"`{name}`" in PAGE for name in CARDS)
    assert all(f"`{name}`" in PAGE and f"`{name}`" in section("p2prl plan") for name in MODELS)


def test_a_forecast_imports_no_torch(fleet: Path) -> None:
    program = (
        "import sys\n"
        "from p2prl.cli.entry import run_app\n"
        "from p2prl.cli.app import app\n"
        "try:\n"
        f"    run_app(app, program='p2prl', arguments=['plan', '--fleet', {str(fleet)!r}, '--updates', '8'])\n"
        "except SystemExit as ended:\n"
        "    assert not ended.code, ended.code\n"
        "assert 'p2prl.planning.utilization_forecast' in sys.modules\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    assert outcomes([program]) == [""]


def test_a_run_is_planned_from_what_its_learner_has_seen(tmp_path: Path) -> None:
    """Three volunteers bring a group in five seconds together, of two that training could use."""
    run = write_run(tmp_path / "run")
    found = json_of("plan", run, "--updates", 20)
    assert set(found) == json_keys("p2prl plan")
    assert found["observed"]["realised"] == pytest.approx(0.5)
    assert found["formula"]["utilization"] == pytest.approx(0.5, abs=0.05)
    assert (found["run"]["staleness"], found["bottleneck"], found["saturated"]) == (4, "volunteers", False)
    assert json_of("plan", run, "--staleness", 32, "--updates", 8)["run"]["staleness"] == 32
    text = invoke("plan", run, "--updates", 8).output
    assert "so far 50 %" in text
    assert "more like" in text


def test_a_run_shows_the_plan_of_ranks_that_was_chosen_for_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    assert json_of("plan", run, "--updates", 8)["host"] is None
    fast, slow = (
        KeptPlan(
            plan=name, zero=2, micro_batch_tokens=512, checkpointing=False, seconds=seconds, memory_bytes=2_000_000_000
        )
        for name, seconds in (("pp2", 2.0), ("1", 3.0))
    )
    kept = HostChoice(
        host="h", versions="v", settings="s", profile_s=9.0, plans=[fast, slow], without_memory=[], without_time=["tp2"]
    )
    write_choice(run, kept)
    assert json_of("plan", run, "--updates", 8)["host"] == msgspec.to_builtins(kept)
    text = invoke("plan", run, "--updates", 8).output
    assert "host         plan pp2: 2 s an update, 2.00 GB a rank, 512 tokens a micro-batch: chosen" in text
    assert "plan 1: 3 s an update, 2.00 GB a rank, 512 tokens a micro-batch: 50% slower" in text
    assert "not timed: tp2" in text


def test_a_budget_names_whom_to_take(fleet: Path) -> None:
    priced = FILE + 'price = 0.1\n[[machines]]\nname = "lab"\ncount = 2\ncard = "l4"\nprice = 0.8\n'
    fleet.write_text(priced)
    paid = json_of("plan", "--fleet", fleet, "--budget", 0.5, "--updates", 8)["affordable"]
    assert (paid["counts"], paid["cost"]) == ([5, 0], pytest.approx(0.5))
    assert 0.0 < paid["utilization"] < json_of("plan", "--fleet", fleet, "--updates", 8)["formula"]["utilization"]
    assert "budget       5 of 12 RTX 3060 at home for 0.5 an hour of 0.5:" in invoke(
        "plan", "--fleet", fleet, "--budget", 0.5, "--updates", 8
    ).output  # fmt: skip
    assert "nobody for 0 an hour" in invoke("plan", "--fleet", fleet, "--budget", 0.05, "--updates", 8).output


def test_either_a_run_or_a_fleet_is_planned(tmp_path: Path, fleet: Path) -> None:
    run = write_run(tmp_path / "run", updates=4)
    for arguments, told in (
        ((), "give one of a run folder and --fleet"),
        ((run, "--fleet", fleet), "give one of a run folder and --fleet"),
        ((run, "--model", "3b"), "--model is for a fleet's file"),
        ((run,), "the run has 4 updates"),
        ((tmp_path,), "is not a run folder"),
    ):
        error = invoke("plan", *arguments).exception
        assert isinstance(error, ConfigError)
        assert told in str(error)
        assert error.remedy
