"""Delay distributions: their draws, and texts that are refused."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import ConfigError
from p2prl.sim.link_conditions import parse_delay


def draws(text: str, count: int = 20_000) -> list[float]:
    law, rng = parse_delay(text), random.Random(7)
    return [law.draw(rng) for _ in range(count)]


def test_lognormal_of_heterorl() -> None:
    values = draws("lognormal:60:1800")
    assert min(values) >= 60
    assert max(values) <= 1800
    # Median √(L·U); 99.5 % of the mass lies between the bounds, so .25 % is clipped to each (5σ of the binomial).
    assert statistics.median(values) == pytest.approx(math.sqrt(60 * 1800), rel=0.03)
    clipped = sum(value == 1800 for value in values) / len(values)
    assert abs(clipped - 0.0025) < 5 * math.sqrt(0.0025 / len(values))
    sigma = math.log(1800 / 60) / (2 * 2.8070337683438)
    assert statistics.stdev(map(math.log, values)) == pytest.approx(sigma, rel=0.03)


def test_exponential_uniform_and_constant() -> None:
    assert statistics.mean(draws("exp:3")) == pytest.approx(3, rel=0.05)
    uniform = draws("uniform:2:4")
    assert min(uniform) >= 2
    assert max(uniform) < 4
    assert statistics.mean(uniform) == pytest.approx(3, rel=0.01)
    assert set(draws("const:5", 10)) == {5.0}


def test_weibull_has_a_heavy_tail_below_its_maximum() -> None:
    values = draws("weibull:256")
    assert statistics.median(values) == pytest.approx(16, rel=0.06)
    assert max(values) == 256
    assert statistics.median(draws("weibull:1000:1:10")) == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "const",
        "const:",
        "const:x",
        "const:-1",
        "const:1:2",
        "const:nan",
        "const:inf",
        "uniform:3:2",
        "uniform:1",
        "exp:1:2",
        "lognormal:0:5",
        "lognormal:9:5",
        "lognormal:1",
        "weibull:0",
        "weibull:1:0",
        "weibull:1:2:3:4",
        "normal:1:2",
        "CONST:5",
        "const;5",
    ],
)
def test_other_rewards_are_refused_with_the_valid_forms(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_delay(text)
    assert "lognormal" in caught.value.remedy


@pytest.mark.parametrize(("name", "long_name"), [("lognorm", "lognormal"), ("unif", "uniform")])
def test_the_benchmarks_names_mean_the_same_distribution(name: str, long_name: str) -> None:
    assert draws(f"{name}:5:60", 50) == draws(f"{long_name}:5:60", 50)


@given(st.text(max_size=30), st.floats(0, 1, exclude_max=True))
def test_any_text_is_a_distribution_or_a_config_error(text: str, p: float) -> None:
    for candidate in (text, "lognormal:" + text, "exp:" + text, "weibull:" + text):
        try:
            law = parse_delay(candidate)
        except ConfigError:
            continue
        assert law.quantile(p) >= 0
        assert math.isfinite(law.quantile(p))
