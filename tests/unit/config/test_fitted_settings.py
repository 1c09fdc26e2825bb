"""Settings that follow from the model's size: the learning-rate rule, and what is replaced in run.toml."""

from __future__ import annotations

import tomllib

import pytest

from p2prl.config.model_size_settings import fitted_settings, learning_rate_for
from p2prl.config.new_run import RunSettings
from p2prl.config.presets import preset_by_name
from p2prl.config.toml_tables import parse

SETTINGS = preset_by_name("chain4").settings_text()


@pytest.mark.parametrize(
    ("parameters", "rate"),
    [
        (1, 2.5e-4),
        (59_000, 2.5e-4),
        (1_000_000, 2.2e-4),
        (5_000_000, 2e-4),
        (10_000_000, 1e-4),
        (124_000_000, 8.1e-6),
        (494_000_000, 2e-6),
        (1_000_000_000, 1e-6),
        (70_000_000_000, 1e-6),
    ],
)
def test_rule(parameters: int, rate: float) -> None:
    assert learning_rate_for(parameters) == rate


def test_a_larger_model_never_gets_a_higher_rate() -> None:
    rates = [learning_rate_for(round(10 ** (exponent / 10))) for exponent in range(120)]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize(("parameters", "device", "threads"), [(999_999, "cpu", 1), (1_000_000, "auto", 0)])
def test_only_what_follows_from_the_size_changes(parameters: int, device: str, threads: int) -> None:
    fitted = parse(RunSettings, tomllib.loads(fitted_settings(SETTINGS, parameters=parameters)), where="run.toml")
    before = tomllib.loads(SETTINGS)
    before["learner"]["optimizer"]["learning_rate"] = learning_rate_for(parameters)
    before |= {"device": device, "threads": threads}
    assert fitted == parse(RunSettings, before, where="run.toml")


def test_a_text_without_these_keys_stays_as_it_is() -> None:
    assert fitted_settings("[learner]\nupdates = 3\n", parameters=10**9) == "[learner]\nupdates = 3\n"
