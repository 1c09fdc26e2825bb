"""The staleness benchmark around its training runs: resuming, rows and acceptance criteria."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import save_file

from p2prl.errors import ConfigError, IntegrityError, MachineError, P2PRLError
from p2prl_lab.bench.comparison.benchmark import Case, ComparisonConfig
from p2prl_lab.bench.staleness import benchmark
from p2prl_lab.bench.staleness.acceptance import CRITERIA, judge, runs_needed
from p2prl_lab.bench.staleness.benchmark import StalenessConfig, StalenessReport, run_staleness
from p2prl_lab.bench.staleness.measures import MEASURES, NOT_FINITE, Evaluation
from p2prl_lab.bench.staleness.results import ResultFile, Setting
from p2prl_lab.bench.staleness.seed_log import SeedResult
from p2prl_lab.bench.staleness.summary import as_csv, as_markdown, rows_of
from p2prl_lab.bench.training import warm_start
from p2prl_lab.bench.training.decoder_shape import initial_weights
from p2prl_lab.bench.training.environments import environment_by_name
from p2prl_lab.bench.training.training_plan import TrainingPlan
from p2prl_lab.bench.training.warm_start import warm_path
from p2prl_lab.commands.bench_staleness import bench_staleness
from tests.json_shapes import breaches

PLAN = TrainingPlan(updates=3, evaluate_every=1, evaluation_prompts=8, final_prompts=8)
CALM = TrainingPlan()


def result(seed: int, last: float, *, best: float | None = None) -> SeedResult:
    curve = ((0, 0.3), (160, last - 0.01), (180, best or last), (200, 2 * last - (best or last) + 0.01))
    evaluations = tuple(
        Evaluation(
            update=update, sampled=reward, greedy=reward / 2 + 0.5, pass_at_8=1.0 - update / 1000, entropy=0.3 + seed,
            nll=0.2, length=5.0, finished=1.0, calibration=0.1, kl=update / 100, grad_norm=0.5,
        )
        for update, reward in curve
    )  # fmt: skip
    return SeedResult(
        seed=seed, evaluations=evaluations, grad_norm_max=1.0 + seed, weight_max=2.0 - seed / 10,
        ess_min=0.5 + seed / 100, kl_mean=0.1 * (seed + 1), kl_max=1.0,
    )  # fmt: skip


def setting(method: str, delay: str, plan: TrainingPlan = CALM) -> Setting:
    return Setting.of("chain4", method, delay, plan)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An output folder whose warm starts are plain initial weights, which cost nothing."""
    environment = environment_by_name("chain4")
    (tmp_path / "warm").mkdir()
    for seed in range(4):
        save_file(
            {"weights": initial_weights(environment.shape, seed)}, warm_path(environment, seed, tmp_path / "warm")
        )
    return tmp_path


def test_a_rerun_does_only_what_is_missing(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, str, tuple[int, ...]]] = []
    inner = benchmark.run_batch

    def watched(results, environment, method, delay, plan, seeds, *rest, **more):  # type: ignore[no-untyped-def]
        ran.append((method, delay, tuple(seeds)))
        inner(results, environment, method, delay, plan, seeds, *rest, **more)

    monkeypatch.setattr(benchmark, "run_batch", watched)
    shares: list[float] = []
    first = StalenessConfig(methods=("gepo_t",), delays=("const:2",), seeds=2, plan=PLAN)
    report = run_staleness(first, out, on_progress=lambda _, share: shares.append(share))
    assert ran == [("grpo", "const:0", (0, 1)), ("gepo_t", "const:0", (0, 1)), ("gepo_t", "const:2", (0, 1))]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert [(row.method, row.delay) for row in report.rows] == [
        ("grpo", "const:0"),
        ("gepo_t", "const:0"),
        ("gepo_t", "const:2"),
    ]
    ran.clear()
    again = run_staleness(first, out)
    assert ran == []
    assert again == report
    more = StalenessConfig(methods=("gepo_t", "gex"), delays=("const:02",), seeds=3, plan=PLAN)
    run_staleness(more, out)
    assert ran == [
        ("grpo", "const:0", (2,)),
        ("gepo_t", "const:0", (2,)),
        ("gex", "const:0", (0, 1, 2)),
        ("gepo_t", "const:2", (2,)),
        ("gex", "const:2", (0, 1, 2)),
    ]
    assert (out / "staleness.png").read_bytes().startswith(b"\x89PNG")
    assert len((out / "results.jsonl").read_text().splitlines()) == 15
    assert (out / "staleness_greedy.png").read_bytes().startswith(b"\x89PNG")


def test_results_survive_a_crash_in_the_middle_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    ResultFile(path).add(setting("grpo", "const:0"), [result(0, 0.9), result(1, 0.8)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    read = ResultFile(path)
    assert read.of(setting("grpo", "const:0"), range(3)) == [result(0, 0.9)]
    assert read.missing(setting("grpo", "const:0"), range(3)) == [1, 2]
    read.add(setting("grpo", "const:0"), [result(1, 0.8)])
    assert path.read_bytes() == whole
    assert ResultFile(path).missing(setting("grpo", "const:0", TrainingPlan(learning_rate=1e-3)), range(2)) == [0, 1]


def test_a_damaged_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    ResultFile(path).add(setting("grpo", "const:0"), [result(0, 0.9)])
    path.write_bytes(path.read_bytes().replace(b'"sampled":', b'"simple":', 1))
    with pytest.raises(IntegrityError, match="line 1"):
        ResultFile(path)


def test_rows_hold_the_means_and_extremes_of_their_seeds(tmp_path: Path) -> None:
    file = ResultFile(tmp_path / "results.jsonl")
    file.add(setting("grpo", "const:0"), [result(seed, 0.9) for seed in range(3)])
    file.add(setting("gex", "const:64"), [result(0, 0.7, best=0.75), result(1, 0.8), result(2, 0.84)])
    baseline, row = rows_of(file, "chain4", ["grpo", "gex"], ["const:0", "const:64"], CALM, range(3))
    assert baseline.loss_vs_on_policy == pytest.approx(0.0)
    assert row.last == pytest.approx(0.78)
    assert row.last_per_seed == pytest.approx((0.7, 0.8, 0.84))
    assert row.last_deviation == pytest.approx(0.0721110, abs=1e-6)
    assert row.best == pytest.approx((0.75 + 0.81 + 0.85) / 3)
    assert row.loss_vs_on_policy == pytest.approx(1 - 0.78 / 0.9)
    assert row.grad_norm_max == 3.0
    assert row.weight_max == 2.0
    assert row.ess_min == 0.5
    assert row.kl_mean == pytest.approx(0.2)
    table = list(csv.DictReader(io.StringIO(as_csv([row]))))
    assert float(table[0]["last"]) == pytest.approx(0.78)
    assert table[0]["last_per_seed"] == "0.7000 0.8000 0.8400"
    assert row.greedy == pytest.approx(0.89)
    assert row.greedy_per_seed == pytest.approx((0.85, 0.9, 0.92))
    assert row.pass_at_8 == pytest.approx(1 - 0.18)
    assert row.entropy == pytest.approx(1.3)
    assert set(row.curves) == set(MEASURES)
    assert [step for step, _ in row.curves["kl"]] == [0, 160, 180, 200]
    assert [kl for _, kl in row.curves["kl"]] == pytest.approx([0.0, 1.6, 1.8, 2.0])
    assert row.curves["sampled"][1][0] == 160
    assert row.curves["sampled"][1][1] == pytest.approx(0.77)
    assert table[0]["greedy_per_seed"] == "0.8500 0.9000 0.9200"
    assert table[0]["seeds"] == "0 1 2"
    assert float(table[0]["grpo_base.greedy_loss"]) == pytest.approx(1 - 0.89 / 0.95)
    assert table[0]["own_base.method"] == ""
    text = as_markdown([row])
    assert "| gex | const:64 (not steady) |" in text
    assert "| 100% |  | 0.890 | 0.820 |  | 6.3 % ± 2.2 | 6.3 % ± 2.2 |" in text
    assert "| 0.780 | 0.072 | 13.3 % ± 4.6 |" in text
    assert text.rstrip().endswith("| 0 of 3 |")
    assert len({line.count("|") for line in text.splitlines()}) == 1


def test_each_base_is_its_own_comparison(tmp_path: Path) -> None:
    file = ResultFile(tmp_path / "results.jsonl")
    fast = TrainingPlan(learning_rate=1e-3)
    for method, delay, plan, last in (
        ("grpo", "const:0", CALM, 0.9),
        ("gex", "const:0", CALM, 0.8),
        ("gepo_t+lr=0.002", "const:0", CALM, 0.94),
        ("gepo", "const:0", fast, 0.96),
        ("gex", "const:64", CALM, 0.72),
    ):
        file.add(setting(method, delay, plan), [result(seed, last) for seed in range(2)])
    file.add(setting("tis", "const:0"), [result(0, 1.0)])  # one seed of two: no base
    file.add(setting("tis", "const:0", TrainingPlan(updates=400)), [result(seed, 1.0) for seed in range(2)])
    (row,) = rows_of(file, "chain4", ["gex"], ["const:64"], CALM, range(2))
    assert row.grpo_base is not None
    assert row.own_base is not None
    assert row.best_base is not None
    assert [(base.method, base.learning_rate) for base in (row.grpo_base, row.own_base, row.best_base)] == [
        ("grpo", 5e-4),
        ("gex", 5e-4),
        ("gepo", 1e-3),
    ]
    assert row.grpo_base.loss == row.loss_vs_on_policy == pytest.approx(0.2)
    assert row.own_base.loss == pytest.approx(0.1)
    assert row.best_base.loss == pytest.approx(0.25)
    assert row.own_base.greedy_loss == pytest.approx(1 - 0.86 / 0.9)
    assert row.own_base.greedy_loss_error == pytest.approx(0.0, abs=1e-12)
    assert not row.steady_state
    (alone,) = rows_of(file, "chain4", ["gepo_t+lr=0.002"], ["const:0"], CALM, range(2))
    assert alone.own_base is not None
    assert alone.own_base.learning_rate == 0.002
    assert alone.own_base.loss == pytest.approx(0.0)
    assert alone.steady_state


def test_a_collapsed_seed_marks_its_row(tmp_path: Path) -> None:
    file = ResultFile(tmp_path / "results.jsonl")
    broken = result(1, 0.7)
    lost = dataclasses.replace(broken.evaluations[2], entropy=NOT_FINITE)
    broken = dataclasses.replace(broken, evaluations=(*broken.evaluations[:2], lost, broken.evaluations[3]))
    file.add(setting("gex", "const:64"), [result(0, 0.7), broken])
    (row,) = rows_of(ResultFile(tmp_path / "results.jsonl"), "chain4", ["gex"], ["const:64"], CALM, range(2))
    assert (row.collapsed, row.collapsed_seeds) == (True, (1,))
    (row,) = rows_of(file, "chain4", ["gex"], ["const:64"], CALM, range(1))
    assert (row.collapsed, row.collapsed_seeds) == (False, ())


def test_a_loss_needs_the_baseline_on_the_same_seeds(tmp_path: Path) -> None:
    file = ResultFile(tmp_path / "results.jsonl")
    file.add(setting("grpo", "const:0"), [result(0, 0.9)])
    file.add(setting("gex", "const:64"), [result(0, 0.7), result(1, 0.8)])
    (row,) = rows_of(file, "chain4", ["gex"], ["const:64"], CALM, range(2))
    assert row.loss_vs_on_policy is None
    assert row.loss_error is None


def test_error_of_a_loss_is_paired_by_seed(tmp_path: Path) -> None:
    file = ResultFile(tmp_path / "results.jsonl")
    file.add(setting("grpo", "const:0"), [result(0, 0.5), result(1, 0.8), result(2, 1.0)])
    file.add(setting("gex", "const:64"), [result(2, 0.8), result(0, 0.4), result(1, 0.64)])
    file.add(setting("gepo", "const:64"), [result(0, 0.5), result(1, 0.64), result(2, 0.6)])
    even, uneven = rows_of(file, "chain4", ["gex", "gepo"], ["const:64"], CALM, range(3))
    assert even.last_deviation > 0.1
    assert even.loss_error == pytest.approx(0.0, abs=1e-12)  # a fifth lost on every seed
    # Losses 0, .2 and .4: deviation .2, error .2/√3.
    assert uneven.loss_error == pytest.approx(0.2 / 3**0.5)
    (alone,) = rows_of(file, "chain4", ["gepo"], ["const:64"], CALM, range(1))
    assert alone.loss_error is None


def _filled(path: Path, *, seeds: int, stale_gepo: float) -> ResultFile:
    """Every run that the criteria need: on policy .9, GRPO .6 and REINFORCE .1 under delay, the rest `stale_gepo`."""
    file = ResultFile(path)
    for method, delay, plan in runs_needed():
        last = 0.9 if delay == "const:0" else {"grpo": 0.6, "reinforce": 0.1}.get(method, stale_gepo)
        file.add(setting(method, delay, plan), [result(seed, last) for seed in range(seeds)])
    return file


def test_criteria_are_met_by_good_figures_only(tmp_path: Path) -> None:
    good = judge(_filled(tmp_path / "good.jsonl", seeds=5, stale_gepo=0.89), range(5))
    assert len(good) == len(CRITERIA)
    assert all(verdict.met is True for verdict in good)
    bad = {
        verdict.criterion.text: verdict for verdict in judge(_filled(tmp_path / "b", seeds=5, stale_gepo=0.8), range(5))
    }
    assert bad["GEPO-T, constant 64"].met is False
    assert bad["GEPO-T, constant 64"].measured == pytest.approx(1 - 0.8 / 0.9)
    assert bad["delay hurts GRPO"].met is True
    assert bad["on-policy GEPO-T learns"].met is True


def test_too_few_seeds_measure_nothing(tmp_path: Path) -> None:
    verdicts = judge(_filled(tmp_path / "few.jsonl", seeds=4, stale_gepo=0.89), range(5))
    assert all(verdict.met is None and verdict.measured is None for verdict in verdicts)


def test_one_of_several_methods_suffices(tmp_path: Path) -> None:
    file = ResultFile(tmp_path / "some.jsonl")
    file.add(setting("grpo", "const:0"), [result(seed, 0.9) for seed in range(5)])
    file.add(setting("gepo_t", "lognorm:64"), [result(seed, 0.8) for seed in range(5)])

    def met() -> bool | None:
        return {verdict.criterion.text: verdict.met for verdict in judge(file, range(5))}["GEPO-T or gex, log-normal"]

    assert met() is None
    file.add(setting("gex", "lognorm:64"), [result(seed, 0.88) for seed in range(5)])
    assert met() is True


@pytest.mark.parametrize(
    ("steady", "given", "used"), [(False, None, 5e-4), (True, None, 1.25e-4), (True, 3e-4, 3e-4), (False, 3e-4, 3e-4)]
)
def test_runs_at_steady_state_have_a_lower_rate_unless_one_is_given(
    steady: bool, given: float | None, used: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = list[StalenessConfig]()

    def finished(config: StalenessConfig, out: Path, **rest: object) -> StalenessReport:
        configs.append(config)
        return StalenessReport(rows=[], verdicts=[])

    monkeypatch.setattr(benchmark, "run_staleness", finished)
    bench_staleness(
        methods="default", delays="const:128", updates=640, learning_rate=given, steady_state=steady, out=tmp_path
    )
    assert configs[0].plan.learning_rate == used
    with pytest.raises(P2PRLError, match="learning_rate"):
        bench_staleness(methods="default", learning_rate=0.0, steady_state=steady, out=tmp_path)


def test_command_prints_one_json_object_and_fails_with_its_criteria(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _filled(tmp_path / "results.jsonl", seeds=5, stale_gepo=0.8)

    def finished(config: StalenessConfig, out: Path, **rest: object) -> StalenessReport:
        assert config.methods == ("grpo", "gepo_t")
        assert config.plan == CALM
        rows = rows_of(file, config.task, config.methods, config.delays, config.plan, config.seed_range)
        return StalenessReport(rows=rows, verdicts=judge(file, config.seed_range) if config.check else [])

    monkeypatch.setattr(benchmark, "run_staleness", finished)

    def command(*, check: bool) -> None:
        bench_staleness(
            methods="grpo, gepo_t", delays="const:64", seeds=5, updates=200, learning_rate=None, task="chain4",
            task_file=None, step_s=None, out=tmp_path, check=check, sweep=False, steady_state=False, seed=0,
            as_json=True,
        )  # fmt: skip

    command(check=False)
    document = json.loads(capsys.readouterr().out)
    assert breaches(document, "p2prl bench staleness") == []
    assert [(row["method"], row["delay"]) for row in document["results"]] == [
        ("grpo", "const:64"),
        ("gepo_t", "const:64"),
    ]
    assert set(document["results"][0]) >= {
        "best", "last", "last_per_seed", "loss_vs_on_policy", "loss_error", "grad_norm_max", "weight_max", "ess_min",
        "kl_mean", "greedy", "pass_at_8", "entropy", "own_base", "best_base", "collapsed", "curves", "steady_state",
    }  # fmt: skip
    assert document["demands"] == []
    with pytest.raises(P2PRLError, match=r"of 12 criteria"):
        command(check=True)
    judged = json.loads(capsys.readouterr().out)
    assert breaches(judged, "p2prl bench staleness") == []
    assert len(judged["demands"]) == 12


def test_seconds_take_the_given_step_time_or_their_own() -> None:
    config = StalenessConfig(
        methods=("grpo",), delays=("const:64", "lognorm:60:1800s", "weibull:60:1800s@5"), seeds=1, step_s=12.5
    )
    assert config.delay_texts() == ["const:64", "lognorm:60:1800s@12.5", "weibull:60:1800s@5"]


def test_illegal_comparisons_are_refused() -> None:
    for wrong in (
        {"methods": ()},
        {"methods": ("nothing",)},
        {"delays": ("soon",)},
        {"task": "chain5"},
        {"seeds": 0},
        {"step_s": 0.0, "delays": ("const:60s",)},
    ):
        with pytest.raises(ConfigError):
            StalenessConfig(**{"methods": ("grpo",), "delays": ("const:0",), "seeds": 1, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("delay", "step_s"),
    [
        ("const:900000s", 1e6),
        ("const:1234567s", 10.0),
        ("lognorm:0.00001:1800s", 1.0),
        ("const:900000s@1000000", None),
    ],
)
def test_a_distribution_that_cannot_be_written_out_is_refused(delay: str, step_s: float | None) -> None:
    with pytest.raises(ConfigError, match=delay.split(":")[0]) as caught:
        StalenessConfig(methods=("grpo",), delays=(delay,), step_s=step_s, seeds=1)
    assert "six digits" in caught.value.remedy


@pytest.mark.parametrize("first", [-1, 2097152, (1 << 20) - 1])
def test_seeds_out_of_range_are_refused_with_the_range(first: int) -> None:
    case = Case(recipe="grpo")
    makers: tuple[Callable[[], object], ...] = (
        lambda: StalenessConfig(methods=("grpo",), delays=("const:0",), seeds=2, first_seed=first),
        lambda: ComparisonConfig(cases=(case,), seeds=2, first_seed=first),
    )
    for make in makers:
        with pytest.raises(ConfigError, match="seed is") as caught:
            make()
        assert "0 to 1048574" in caught.value.remedy


def test_a_file_in_place_of_the_output_folder_has_a_remedy(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    config = StalenessConfig(methods=("grpo",), delays=("const:0",), seeds=1, plan=PLAN)
    with pytest.raises(MachineError, match="taken") as caught:
        run_staleness(config, taken)
    assert "--out" in caught.value.remedy


def test_warm_start_reports_progress(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm_path(environment_by_name("chain4"), 0, out / "warm").unlink()
    short = functools.partial(warm_start.warm_start, steps=3)
    monkeypatch.setattr(warm_start, "warm_start", short)
    stages: list[str] = []
    config = StalenessConfig(methods=("grpo",), delays=("const:0",), seeds=1, plan=PLAN)
    run_staleness(config, out, on_progress=lambda stage, _: stages.append(stage))
    assert sum(stage.startswith("warm start for grpo") for stage in stages) == 3
