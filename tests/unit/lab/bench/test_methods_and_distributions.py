"""Delay distributions and methods, parsed from text."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from p2prl.errors import ConfigError
from p2prl_lab.bench.staleness.delay_laws import parse_law
from p2prl_lab.bench.staleness.methods import parse_method
from p2prl_lab.bench.staleness.staleness_distributions import parse_staleness

GRID = [(i + 0.5) / 20_000 for i in range(20_000)]
LATE = 10**6


def drawn(text: str) -> list[int]:
    delay = parse_staleness(text)
    return [delay.draw(p, LATE) for p in GRID]


def test_constant_and_uniform_delays() -> None:
    assert set(drawn("const:64")) == {64}
    assert set(drawn("const:0")) == {0}
    counts = Counter(drawn("unif:9"))
    assert sorted(counts) == list(range(10))
    assert max(counts.values()) - min(counts.values()) <= 2


def test_lognormal_delays_hold_their_mass_between_one_and_most() -> None:
    delays = drawn("lognorm:64")
    assert sorted(delays)[10_000] == 8  # the median is sqrt(64)
    assert min(delays) == 1
    assert max(delays) == 64
    assert 9 < sum(delays) / len(delays) < 11
    assert sum(parse_staleness("lognorm:64").quantile(p) > 64 for p in GRID) / len(GRID) == pytest.approx(
        0.0025, abs=2e-4
    )


def test_weibull_delays_have_their_median_and_a_long_tail() -> None:
    delays = drawn("weibull:256")
    assert sorted(delays)[10_000] == 16
    assert max(delays) == 256
    assert sum(delays) / len(delays) > 2 * 16
    quartile = sorted(delays)[15_000]
    assert quartile == pytest.approx(64, abs=1)  # shape 1/2: twice the log-survival is four times the delay


def test_exponential_exceeds_its_parameter_with_probability_half_a_percent() -> None:
    delay = parse_staleness("exp:100")
    assert sum(delay.quantile(p) > 100 for p in GRID) / len(GRID) == pytest.approx(0.005, abs=2e-4)
    assert delay.quantile(0.75) == pytest.approx(2 * delay.quantile(0.5))
    assert max(drawn("exp:100")) == 100


def test_no_delay_is_longer_than_there_were_updates() -> None:
    for text in ("const:64", "lognorm:64", "weibull:256", "exp:64", "unif:64"):
        delay = parse_staleness(text)
        assert {delay.draw(p, 0) for p in GRID[::100]} == {0}
        assert max(delay.draw(p, 5) for p in GRID[::100]) == 5
        assert 0 <= delay.draw(0.0, LATE) <= delay.draw(1 - 2**-53, LATE) <= delay.longest


def test_seconds_are_counted_in_steps() -> None:
    lognormal = parse_staleness("lognorm:60:1800s", step_s=12.5)
    assert lognormal.text == "lognorm:60:1800s@12.5"
    assert parse_staleness(lognormal.text).text == lognormal.text
    delays = [lognormal.draw(p, LATE) for p in GRID]
    assert (min(delays), sorted(delays)[10_000], max(delays)) == (5, 26, 144)  # 60 s, sqrt(60 * 1800) s, 1800 s
    assert sum(lognormal.quantile(p) > 144 for p in GRID) / len(GRID) == pytest.approx(0.0025, abs=2e-4)
    assert set(drawn("const:100s@8")) == {12}


def test_weibull_of_seconds_has_its_quantiles_at_the_bounds() -> None:
    delay = parse_staleness("weibull:60:1800s@1")
    assert delay.quantile(0.0025) == pytest.approx(60)
    assert delay.quantile(0.9975) == pytest.approx(1800)
    assert min(drawn("weibull:60:1800s@1")) == 60
    assert max(drawn("weibull:60:1800s@1")) == 1800
    # Weibull: log(−log survival) is a line in log x; its slope between two other quantiles is that between the ends.
    slopes = [
        (math.log(-math.log(1 - high)) - math.log(-math.log(1 - low)))
        / math.log(delay.quantile(high) / delay.quantile(low))
        for low, high in ((0.0025, 0.9975), (0.3, 0.6), (0.01, 0.9))
    ]
    assert slopes == pytest.approx([slopes[0]] * 3)


@pytest.mark.parametrize(
    "text",
    ["lognorm:60:1800s", "lognorm:60:1800s@0", "lognorm:1800:60s@5", "lognorm:1800s@5", "const:1:2s@5", "exp:9s@5"],
)
def test_meaningless_seconds_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_staleness(text)


@pytest.mark.parametrize("text", ["const:5s@10", "const:5s@11", "lognorm:1:4s@9", "const:5s@999999"])
def test_delays_that_round_to_nothing_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="none at all") as caught:
        parse_staleness(text)
    assert "const:0" in caught.value.remedy
    assert parse_staleness("const:6s@10").longest == 1
    assert parse_staleness("const:0s@10").longest == 0


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("lognormal:64", "lognorm:64"),
        ("uniform:64", "unif:64"),
        ("lognormal:60:1800s@12.5", "lognorm:60:1800s@12.5"),
        ("peers:uniform:3/lognormal:9", "peers:unif:3/lognorm:9"),
        ("within:lognormal:64", "within:lognorm:64"),
    ],
)
def test_the_simulators_names_are_stored_as_the_benchmarks(text: str, stored: str) -> None:
    law, same = parse_law(text), parse_law(stored)
    assert law.text == same.text == stored
    assert [law.delay(p, LATE, 1) for p in GRID[::100]] == [same.delay(p, LATE, 1) for p in GRID[::100]]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "const",
        "const:",
        "const:-1",
        "const:1.5",
        "const:١",
        "gauss:4",
        "unif:0",
        "uniform:0:9",
        "exp:0",
        "const:9999999",
    ],
)
def test_other_distributions_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="delay distribution"):
        parse_staleness(text)


def test_methods_carry_options_and_guards() -> None:
    method = parse_method("gepo_t:cap=1.5:taper=token+brake+vcpo", max_completion_tokens=8)
    assert method.objective.spec.name == "gepo_t"
    assert method.objective.config.cap == 1.5
    assert method.objective.config.taper == "token"
    kl, log_ratios = torch.tensor(0.2), torch.tensor([0.0, -200.0])
    assert method.rate_factor(kl, log_ratios) == pytest.approx(0.5 * 0.5**0.5)
    assert parse_method("gepo_t+brake", max_completion_tokens=8).rate_factor(kl, log_ratios) == pytest.approx(0.5)
    assert parse_method("gepo_t", max_completion_tokens=8).rate_factor(kl, log_ratios) == 1.0
    eased = parse_method("gepo_t+decay=.2+brake=.1", max_completion_tokens=8)
    assert eased.rate_factor(torch.tensor(0.0), log_ratios, done=0.0) == pytest.approx(1.0)
    assert eased.rate_factor(torch.tensor(0.4), log_ratios, done=0.5) == pytest.approx(0.6 * 0.5)
    assert eased.rate_factor(torch.tensor(0.0), log_ratios, done=1.0) == pytest.approx(0.2)
    assert dict(parse_method("gex+average+replay=3", max_completion_tokens=8).additions) == {
        "average": 0.95,
        "replay": 3,
    }
    scaled = parse_method("gepo_t:advantage=mean_std:aggregation=fixed_length", max_completion_tokens=8).objective
    assert (scaled.advantage.kind, scaled.aggregation.kind) == ("mean_std", "fixed_length")
    assert parse_method("dr_grpo", max_completion_tokens=8).objective.aggregation.max_completion_tokens == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gepo_tt", "gepo_tt"), ("grpo+handbrake", "handbrake"), ("grpo+brake+brake", "brake"), ("dpo", "reference"),
        ("gepo_t:cap", "cap"), ("gepo_t:hat=2", "hat"), ("ppo", "value head"),
        ("gex+replay=0", "replay"), ("gex+replay=1.5", "replay"), ("gex+average=1", "average"), ("gex+vcpo=2", "vcpo"),
        ("gex+band=129", "band"), ("gex+band=-1", "band"), ("gex+band=.5", "band"),
        ("gex+lr", "lr"), ("gex+lr=", "lr"), ("gex+lr=0", "lr"), ("gex+lr=1", "lr"),
        ("gis+opob", "gis"), ("gex+opob=1", "opob"), ("gex:advantage=rloo+opob", "baseline"), ("oapl+opob", "baseline"),
        ("gex+decay=", "decay"), ("gex+average+published", "already includes"), ("gex:advantage=big", "advantage"),
    ],
)  # fmt: skip
def test_other_methods_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_method(text, max_completion_tokens=8)


@pytest.mark.parametrize("text", ["grpo:advantage=5", "grpo:aggregation=1", "gepo_t:advantage=inf"])
def test_a_numeric_choice_is_refused_as_an_unknown_name(text: str) -> None:
    with pytest.raises(ConfigError, match="is not valid") as caught:
        parse_method(text, max_completion_tokens=8)
    assert "mean" in caught.value.remedy


@pytest.mark.parametrize("text", ["gepo_t:cap=1:cap=3", "grpo:advantage=mean:advantage=rloo"])
def test_an_option_set_twice_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="twice") as caught:
        parse_method(text, max_completion_tokens=8)
    assert "once" in caught.value.remedy


def test_a_cosine_may_be_zero_and_not_one() -> None:
    def parsed(text: str) -> float:
        return parse_method(text, max_completion_tokens=8).additions["gac"]

    assert [parsed(f"grpo+gac{each}") for each in ("", "=0", "=0.5")] == [0.0, 0.0, 0.5]
    for wrong in ("grpo+gac=1", "grpo+gac=-0.1", "grpo+average=0", "grpo+beta2=1"):
        with pytest.raises(ConfigError, match="invalid value"):
            parse_method(wrong, max_completion_tokens=8)
