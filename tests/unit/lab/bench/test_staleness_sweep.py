"""The sweep: its grid, its choice on development seeds, and reporting seeds that are used once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from p2prl.algorithms.loss_registry import BUILTIN_LOSSES
from p2prl.errors import ConfigError, IntegrityError
from p2prl_lab.bench.staleness import benchmark
from p2prl_lab.bench.staleness.benchmark import StalenessConfig, run_staleness
from p2prl_lab.bench.staleness.measures import Evaluation
from p2prl_lab.bench.staleness.method_sets import NAMED
from p2prl_lab.bench.staleness.methods import parse_method
from p2prl_lab.bench.staleness.results import ResultFile, Setting
from p2prl_lab.bench.staleness.seed_log import SeedResult
from p2prl_lab.bench.staleness.sweep import (
    DEVELOPMENT_SEEDS,
    KNOBS,
    LEAST_RATE,
    Choice,
    SweepPlan,
    Tried,
    grid,
    scaled,
    settle,
    wants_lower,
)
from p2prl_lab.bench.training.training_plan import TrainingPlan

PLAN = TrainingPlan()
SWEEP = SweepPlan(task="chain4", delays=("const:8", "burst:4"), plan=PLAN, max_completion_tokens=8)


def policy(greedy: float, sampled: float = 0.5) -> Evaluation:
    return Evaluation(
        update=0, sampled=sampled, greedy=greedy, pass_at_8=1.0, entropy=0.5, nll=0.5, length=5.0, finished=1.0,
        calibration=0.0, grad_norm=1.0,
    )  # fmt: skip


def result(seed: int, greedy: float, *, sampled: float = 0.5, collapsed: bool = False) -> SeedResult:
    evaluations = [policy(0.4)] + [policy(greedy, sampled)] * 3
    if collapsed:
        evaluations[1:1] = [dataclasses.replace(policy(0.4), length=1e300)]
    return SeedResult(
        seed=seed, evaluations=tuple(evaluations), grad_norm_max=1, weight_max=1, ess_min=1, kl_mean=0, kl_max=0
    )


def test_the_grid_is_four_learning_rates_by_three_clips() -> None:
    methods = grid("grpo", PLAN, max_completion_tokens=8)
    assert len(methods) == len(set(methods)) == 12
    assert methods[0] == "grpo+lr=0.0005"
    assert "grpo:clip_low=0.8:clip_high=4+lr=0.001" in methods
    parsed = [parse_method(method, max_completion_tokens=8) for method in methods]
    assert {method.learning_rate(PLAN) for method in parsed} == {1.25e-4, 2.5e-4, 5e-4, 1e-3}
    assert {method.objective.config.clip_high for method in parsed} == {0.2, 0.4, 4.0}
    assert {m.objective.config.cap for m in (parse_method(t, max_completion_tokens=8) for t in grid("gepo_t:sharpness=1+brake", PLAN, max_completion_tokens=8))} == {1.0, 2.0, 4.0}  # fmt: skip  # noqa: E501


def test_options_that_a_method_sets_itself_are_not_swept() -> None:
    assert grid("gepo_t:cap=1.5", PLAN, max_completion_tokens=8) == [
        "gepo_t:cap=1.5+lr=0.0005", "gepo_t:cap=1.5+lr=0.00025", "gepo_t:cap=1.5+lr=0.000125",
        "gepo_t:cap=1.5+lr=0.001",
    ]  # fmt: skip
    assert grid("tis+lr=0.01", PLAN, max_completion_tokens=8) == [
        "tis+lr=0.01", "tis:cap=1+lr=0.01", "tis:cap=4+lr=0.01",
    ]  # fmt: skip
    assert grid("tis:cap=3+lr=0.01", PLAN, max_completion_tokens=8) == ["tis:cap=3+lr=0.01"]


@pytest.mark.parametrize("loss", [name for name in BUILTIN_LOSSES if name not in ("ppo", "dpo")])
def test_every_losss_grid_can_be_parsed(loss: str) -> None:
    methods = grid(loss, PLAN, max_completion_tokens=8)
    for method in methods:
        parse_method(method, max_completion_tokens=8)
    assert len(methods) == (4 if loss == "reinforce" else 12), loss


def test_knobs_never_repeat_a_default() -> None:
    for names, values in KNOBS:
        assert all(len(value) == len(names) for value in values)
    for loss in (name for name in BUILTIN_LOSSES if name not in ("ppo", "dpo")):
        configs = [parse_method(text, max_completion_tokens=8).objective.config for text in grid(loss, PLAN, max_completion_tokens=8)]  # fmt: skip  # noqa: E501
        assert all(configs.count(config) == 4 for config in configs), loss  # once for each learning rate


@pytest.mark.parametrize("name", sorted(NAMED))
def test_named_methods_get_the_budget_of_all_others(name: str) -> None:
    methods = grid(NAMED[name], PLAN, max_completion_tokens=8)
    assert len(methods) == (4 if any(own in NAMED[name] for own in ("cap=", "negative_high=")) else 12)
    for method in methods:
        parse_method(method, max_completion_tokens=8)


def filled(path: Path, best: str, best_on_policy: str, *, worse: float = 0.6) -> ResultFile:
    file = ResultFile(path)
    for method in SWEEP.grid("tis"):
        for delay in ("const:0", *SWEEP.delays):
            greedy = 0.9 if method == (best_on_policy if delay == "const:0" else best) else worse
            file.add(Setting.of("chain4", method, delay, PLAN), [result(seed, greedy) for seed in DEVELOPMENT_SEEDS])
    return file


def test_the_choice_is_the_best_greedy_reward_over_the_laws(tmp_path: Path) -> None:
    best, on_policy = "tis:cap=4+lr=0.0005", "tis+lr=0.001"
    choice = SWEEP.choose(filled(tmp_path / "r", best, on_policy), "tis")
    assert (choice.chosen, choice.on_policy) == (best, on_policy)
    assert len(choice.tried) == len(choice.tried_on_policy) == 12
    assert {(tried.method, tried.greedy) for tried in choice.tried if tried.greedy > 0.7} == {(best, 0.9)}
    # One law at which another setting is better by more turns the mean.
    file = filled(tmp_path / "s", best, on_policy)
    file.add(Setting.of("chain4", "tis+lr=0.001", "burst:4", PLAN), [result(seed, 1.3) for seed in DEVELOPMENT_SEEDS])
    assert SWEEP.choose(file, "tis").chosen == "tis+lr=0.001"


MOVING = dataclasses.replace(SWEEP, task="arrive8:32", delays=("const:8",), max_completion_tokens=11)


def heights_of(seed: int, *heights: float) -> SeedResult:
    made = [dataclasses.replace(policy(height), update=16 * step) for step, height in enumerate(heights)]
    return dataclasses.replace(result(seed, 0.5), evaluations=tuple(made))


def swept(file: ResultFile, method: str, height: Callable[[str], float]) -> list[str]:
    """Sweep a method on a task that moves, every setting with this area; all that was tried, in order."""
    tried = list[str]()
    while new := [setting for setting in MOVING.settings(file, method) if setting not in tried]:
        tried += new
        for setting in new:
            rows = [heights_of(seed, *[height(setting)] * 6) for seed in DEVELOPMENT_SEEDS]
            file.add(Setting.of("arrive8:32", setting, "const:8", PLAN), rows)
    return tried


def test_settings_of_a_task_that_moves_are_chosen_by_area(tmp_path: Path) -> None:
    """The end says the opposite: the first setting learns at once and ends lower. It is used on policy too."""
    file, swift = ResultFile(tmp_path / "r"), "tis+lr=0.0005"
    while missing := [run for run in MOVING.runs(file, ["tis"]) if file.missing(Setting.of(*run), DEVELOPMENT_SEEDS)]:
        for run in missing:
            heights = (0.0, 0.8, 0.8, 0.8, 0.8, 0.8) if run[1] == swift else (0.0, 0.0, 0.1, 0.9, 0.9, 0.9)
            file.add(Setting.of(*run), [heights_of(seed, *heights) for seed in DEVELOPMENT_SEEDS])
    assert {delay for _, _, delay, _ in MOVING.runs(file, ["tis"])} == {"const:8"}
    choice = MOVING.choose(file, "tis")
    assert (choice.chosen, choice.on_policy, choice.tried_on_policy) == (swift, swift, ())
    # From update 8 on, where the curve is at half of its first height: (0.6 · 8 + 0.8 · 64) / 72.
    assert next(row.greedy for row in choice.tried if row.method == swift) == pytest.approx((0.6 * 8 + 0.8 * 64) / 72)


@pytest.mark.parametrize("place", range(-4, 4))
def test_rates_go_both_ways_until_the_best_is_inside(tmp_path: Path, place: int) -> None:
    best = 2.0**place * PLAN.learning_rate

    def height(setting: str) -> float:
        return 1 - abs(math.log2(float(setting.rpartition("=")[2]) / best)) / 20 - 0.01 * ("cap" in setting)

    tried = swept(ResultFile(tmp_path / "r"), "tis+amsgrad", height)
    rates = {float(setting.rpartition("=")[2]) for setting in tried if "cap" not in setting}
    assert rates >= {best / 2, best, best * 2, 1e-3, 5e-4, 2.5e-4}
    assert max(rates) == pytest.approx(max(1e-3, 2 * best))
    assert min(rates) == pytest.approx(min(2.5e-4, best / 2))
    # Then its clip at the best rate alone, to both sides of its own.
    assert [s for s in tried if "cap" in s] == [f"tis:cap={cap}+amsgrad+lr={best:g}" for cap in (1, 4)]


@pytest.mark.parametrize("best", [0.25, 0.5, 1, 2, 4, 8, 16])
def test_clips_go_both_ways_until_the_best_is_inside(tmp_path: Path, best: float) -> None:
    def cap_of(setting: str) -> float:
        return float(setting.partition("cap=")[2].partition("+")[0] or 2)

    tried = swept(ResultFile(tmp_path / "r"), "tis+lr=0.001", lambda s: 1 - abs(math.log2(cap_of(s) / best)) / 20)
    assert {cap_of(setting) for setting in tried} == {
        cap for cap in (0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32) if min(1, best / 2) <= cap <= max(4, best * 2)
    }
    assert all(setting.endswith("+lr=0.001") for setting in tried)


def test_clips_are_scaled_by_what_they_are() -> None:
    def of(method: str, place: int) -> str | None:
        return scaled(method, place, max_completion_tokens=8)

    assert of("grpo+amsgrad", 2) == "grpo:clip_low=0.8:clip_high=0.8+amsgrad"
    assert of("grpo", 3) == "grpo:clip_low=1:clip_high=1.6"
    assert of("icepop", 1) == "icepop:low=0.25:high=10"
    assert (of("gepo", -1), of("gepo", -2), of("gepo", 1)) == ("gepo:clip=0.8", "gepo:clip=0.4", None)
    assert of("grpo:clip_high=4", 1) is None
    assert of("reinforce", 1) is None
    assert of("tis", 9) is None
    assert of("tis+lr=0.1", 0) == "tis+lr=0.1"
    for loss in (name for name in BUILTIN_LOSSES if name not in ("ppo", "dpo", "reinforce")):
        assert of(loss, 1) or of(loss, -1), loss


def test_collapse_loses_and_ties_go_to_sampled_reward_then_to_the_default(tmp_path: Path) -> None:
    best = "tis:cap=4+lr=0.0005"
    file = filled(tmp_path / "r", best, best)
    broken = [result(seed, 0.9, collapsed=seed == 103) for seed in DEVELOPMENT_SEEDS]
    file.add(Setting.of("chain4", best, "const:8", PLAN), broken)
    assert SWEEP.choose(file, "tis").chosen == "tis+lr=0.0005"
    brighter = [result(seed, 0.6, sampled=0.6) for seed in DEVELOPMENT_SEEDS]
    file.add(Setting.of("chain4", "tis:cap=1+lr=0.001", "const:8", PLAN), brighter)
    assert SWEEP.choose(file, "tis").chosen == "tis:cap=1+lr=0.001"


def test_a_choice_needs_every_development_run(tmp_path: Path) -> None:
    file = ResultFile(tmp_path / "r")
    with pytest.raises(ConfigError, match="lacks development runs"):
        SWEEP.choose(file, "tis")


def test_rates_go_down_as_long_as_the_lowest_is_the_best(tmp_path: Path) -> None:
    """Under the laws to 6.25e-5; what is best on policy lies inside the first grid."""
    file, tried = ResultFile(tmp_path / "r"), list[str]()
    greedy = {"0.0005": 0.6, "0.00025": 0.7, "0.000125": 0.8, "6.25e-05": 0.85, "3.125e-05": 0.82, "0.001": 0.1}
    while new := [setting for setting in SWEEP.settings(file, "tis") if setting not in tried]:
        tried += new
        for setting in new:
            for delay in ("const:0", *SWEEP.delays):
                rate = setting.rpartition("=")[2]
                score = greedy[rate] if delay != "const:0" else 0.9 * (rate == "0.0005")
                file.add(
                    Setting.of("chain4", setting, delay, PLAN), [result(seed, score) for seed in DEVELOPMENT_SEEDS]
                )
    assert len(tried) == len(set(tried)) == 18
    assert [setting for setting in tried if setting.startswith("tis+")] == [
        f"tis+lr={rate}" for rate in ("0.0005", "0.00025", "0.000125", "0.001", "6.25e-05", "3.125e-05")
    ]
    choice = SWEEP.choose(file, "tis")
    assert (choice.chosen, choice.on_policy) == ("tis+lr=6.25e-05", "tis+lr=0.0005")
    assert len(choice.tried) == 18
    assert {setting for _, setting, *_ in SWEEP.runs(file, ["tis"])} == set(tried)


def test_lower_rates_end_and_a_methods_own_rate_stays(tmp_path: Path) -> None:
    file, rates = ResultFile(tmp_path / "r"), set[float]()
    for method in ("tis", "tis:cap=3+lr=0.01"):
        tried: list[str] = []
        while new := [setting for setting in SWEEP.settings(file, method) if setting not in tried]:
            tried += new
            for setting in new:
                rate = float(setting.rpartition("=")[2])
                for delay in ("const:0", *SWEEP.delays):
                    rows = [result(seed, 1 - rate, collapsed=True) for seed in DEVELOPMENT_SEEDS]
                    file.add(Setting.of("chain4", setting, delay, PLAN), rows)
                rates.add(rate)
    assert tried == ["tis:cap=3+lr=0.01"]
    assert LEAST_RATE <= min(rates) / PLAN.learning_rate < 2 * LEAST_RATE


@pytest.mark.parametrize("collapsed", [True, False])
def test_where_everything_collapses_lower_rates_are_wanted(collapsed: bool) -> None:
    rows = [Tried(method=name, greedy=0.5 - 0.1 * i, sampled=0.5, collapsed=collapsed) for i, name in enumerate("ab")]
    assert wants_lower(rows, ["b"]) is collapsed
    assert wants_lower(rows, ["a"])
    survivor = Tried(method="c", greedy=0.1, sampled=0.1, collapsed=False)
    assert not wants_lower([*rows, survivor], ["b"])


def choice(chosen: str, on_policy: str = "tis", method: str = "tis") -> Choice:
    return Choice(method=method, chosen=chosen, on_policy=on_policy, tried=(), tried_on_policy=())


def test_reporting_seeds_see_one_choice_of_each_method(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    settle(path, SWEEP, [choice("tis:cap=4")])
    settle(path, SWEEP, [choice("tis:cap=4"), choice("grpo", method="grpo")])
    kept = path.read_bytes()
    for changed in (choice("tis:cap=1"), choice("tis:cap=4", on_policy="tis:cap=1")):
        with pytest.raises(ConfigError, match="was reported as tis:cap=4") as caught:
            settle(path, SWEEP, [changed])
        assert "--seed" in caught.value.remedy
    assert path.read_bytes() == kept
    longer = dataclasses.replace(SWEEP, plan=TrainingPlan(updates=400))
    settle(path, longer, [choice("tis:cap=1")])
    path.write_text("[")
    with pytest.raises(IntegrityError, match="sweep"):
        settle(path, SWEEP, [choice("tis:cap=4")])


def test_reporting_and_development_seeds_are_apart() -> None:
    for first in (96, 100, 104):
        with pytest.raises(ConfigError, match="development seeds"):
            StalenessConfig(methods=("grpo",), delays=("const:8",), seeds=5, first_seed=first, sweep=True)
    for first in (0, 95, 105):
        StalenessConfig(methods=("grpo",), delays=("const:8",), seeds=5, first_seed=first, sweep=True)


def test_a_warm_start_has_a_share_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(results, _environment, method, delay, plan, seeds, _out, tell, *, device):  # type: ignore[no-untyped-def]
        tell(0.25, "warm start for ")
        results.add(Setting.of("chain4", method, delay, plan), [result(seed, 0.5) for seed in seeds])
        tell(0.25)

    monkeypatch.setattr(benchmark, "run_batch", trained)
    told: list[tuple[str, float]] = []
    run_staleness(
        StalenessConfig(methods=("grpo", "tis"), delays=("const:0",), seeds=1),
        tmp_path,
        on_progress=lambda stage, share: told.append((stage, share)),
    )
    runs = ["grpo under const:0, seeds 0–0", "tis under const:0, seeds 0–0"]
    assert told == [
        (f"{prefix}{name}", share)
        for name, before in zip(runs, (0.0, 0.5), strict=True)
        for prefix, share in (("", before), ("warm start for ", 0.25), ("", before + 0.125))
    ]


def test_a_sweep_reports_its_choices_on_reporting_seeds_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, str, int]] = []

    def trained(results, _environment, method, delay, plan, seeds, _out, tell, *, device):  # type: ignore[no-untyped-def]
        ran.extend((method, delay, seed) for seed in seeds)
        greedy = 0.9 if ("cap=4" in method) == (delay != "const:0") else 0.6
        results.add(Setting.of("chain4", method, delay, plan), [result(seed, greedy) for seed in seeds])
        tell(1.0)

    monkeypatch.setattr(benchmark, "run_batch", trained)
    shares: list[float] = []
    config = StalenessConfig(methods=("tis",), delays=("const:8",), seeds=2, sweep=True)
    report = run_staleness(config, tmp_path, on_progress=lambda _, share: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert {seed for *_, seed in ran} == {0, 1, *DEVELOPMENT_SEEDS}
    assert [(c.chosen, c.on_policy) for c in report.choices] == [("tis:cap=4+lr=0.0005", "tis+lr=0.0005")]
    reported = {(method, delay) for method, delay, seed in ran if seed < 2}
    assert reported == {
        ("grpo", "const:0"), ("tis:cap=4+lr=0.0005", "const:0"), ("tis+lr=0.0005", "const:0"),
        ("tis:cap=4+lr=0.0005", "const:8"),
    }  # fmt: skip
    row = next(row for row in report.rows if row.delay == "const:8")
    assert row.seeds == (0, 1)
    assert row.best_base is not None
    assert (row.best_base.method, row.best_base.learning_rate) == ("tis+lr=0.0005", 5e-4)
    assert row.own_base is not None
    assert row.own_base.method == "tis:cap=4+lr=0.0005"
    ran.clear()
    assert run_staleness(config, tmp_path) == report
    assert ran == []


def test_a_sweep_alone_leaves_the_reporting_seeds_unseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = list[int]()

    def trained(results, _environment, method, delay, plan, seeds, _out, tell, *, device):  # type: ignore[no-untyped-def]
        ran.extend(seeds)
        results.add(Setting.of("chain4", method, delay, plan), [result(seed, 0.5) for seed in seeds])
        tell(1.0)

    monkeypatch.setattr(benchmark, "run_batch", trained)
    config = StalenessConfig(methods=("tis",), delays=("const:8",), seeds=2, sweep=True, sweep_only=True)
    report = run_staleness(config, tmp_path)
    assert set(ran) == set(DEVELOPMENT_SEEDS)
    assert (report.rows, [choice.method for choice in report.choices]) == ([], ["tis"])
    assert not (tmp_path / "sweep.json").exists()
    with pytest.raises(ConfigError, match="nothing to choose"):
        StalenessConfig(methods=("tis",), delays=("const:8",), seeds=2, sweep_only=True)


def test_a_choice_needs_no_more_than_its_tuning_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = list[int]()

    def trained(results, _environment, method, delay, plan, seeds, _out, tell, *, device):  # type: ignore[no-untyped-def]
        ran.extend(seeds)
        results.add(Setting.of("chain4", method, delay, plan), [result(seed, 0.5) for seed in seeds])
        tell(1.0)

    monkeypatch.setattr(benchmark, "run_batch", trained)
    config = StalenessConfig(
        methods=("tis",), delays=("const:8",), seeds=1, sweep=True, sweep_only=True, tuning_seeds=3
    )
    assert [choice.method for choice in run_staleness(config, tmp_path).choices] == ["tis"]
    assert set(ran) == {100, 101, 102}
    with pytest.raises(ConfigError, match="tuning_seeds"):
        dataclasses.replace(config, tuning_seeds=6)
