"""Names, options and combinations: accepted ones, and the remedy of each refusal."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from p2prl.algorithms.advantages import AdvantageConfig
from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.loss_registry import BUILTIN_LOSSES, LOSSES, build_loss, loss_by_name
from p2prl.algorithms.value_checks import require_between
from p2prl.errors import ConfigError
from tests.unit.algorithms.batches import random_batch
from tests.unit.installed_package import install_package

OFFERED = (
    *("grpo", "dr_grpo", "dapo", "bnpo", "gspo", "gepo", "gepo_paper", "gepo_plus", "eqp", "gepo_t", "gex", "cispo"),
    *("tis", "seq_mis", "topr", "m2po", "decoupled_ppo", "a3po", "opsm", "two_sided", "dppo", "asympo", "asymre"),
    *("reinforce", "ppo", "dpo", "luspo", "gmpo", "sapo", "vespo", "icepop", "ipo", "m2po_clip", "normalized_tis"),
    *("clip_cov", "kl_cov", "oapl", "minpro", "mu_grpo", "ctpo"),
)


def test_builtin_losses() -> None:
    assert sorted(BUILTIN_LOSSES) == sorted(OFFERED)


@pytest.mark.parametrize("name", OFFERED)
def test_every_loss_builds_from_its_name(name: str) -> None:
    objective = build_loss(name, max_completion_tokens=64)
    assert objective.spec.name == name
    assert isinstance(objective.config, objective.spec.config_type)
    assert objective.spec.function.__name__ == name
    assert "LocalProtocolError" in (objective.spec.function.__doc__ or "")


@pytest.mark.parametrize(("wrong", "right"), [("gepo-t", "gepo_t"), ("gropo", "grpo"), ("seqmis", "seq_mis")])
def test_an_unknown_loss_suggests_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loss_by_name(wrong)
    assert caught.value.remedy.startswith(f"Did you mean {right}")


def test_hopeless_name_lists_all() -> None:
    with pytest.raises(ConfigError) as caught:
        loss_by_name("zzzzzz")
    assert all(name in caught.value.remedy for name in OFFERED)


def test_an_unknown_option_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="clip_lo") as caught:
        build_loss("grpo", options={"clip_lo": 0.1})
    assert "clip_low" in caught.value.remedy
    with pytest.raises(ConfigError) as caught:
        build_loss("reinforce", options={"cap": 1.0})
    assert "no options" in caught.value.remedy


def test_options_reach_the_config() -> None:
    assert build_loss("gex", options={"cap": 3.0, "taper": "token"}).config.cap == 3.0
    assert build_loss("dapo").config.clip_high == 0.28


OUT_OF_RANGE = [
    ("grpo", "clip_low", -0.1),
    ("grpo", "clip_high", 0.0),
    ("two_sided", "delta", 1.1),
    ("gspo", "clip_low", 2.0),
    ("gepo", "clip", 0.0),
    ("gepo", "log_weight_bound", 0.0),
    ("gepo_paper", "kl_beta", -1.0),
    ("gepo_paper", "log_ratio_bound", 100.0),
    ("gepo_plus", "kl_switch", float("nan")),
    ("gepo_t", "cap", 0.0),
    ("gepo_t", "negatives", 1.5),
    ("gex", "negatives", -0.1),
    ("gepo_t", "sharpness", 2.0),
    ("gex", "nll_floor", 0.0),
    ("gex", "cap", float("inf")),
    ("tis", "cap", -2.0),
    ("cispo", "cap", 0.0),
    ("topr", "negative_low", 1.5),
    ("topr", "negative_high", -0.5),
    ("topr", "sharpness", 1.5),
    ("topr", "nll_floor", 0.0),
    ("seq_mis", "low", 0.0),
    ("seq_mis", "high", 0.5),
    ("m2po", "budget", 0.0),
    ("decoupled_ppo", "behavior_cap", 0.0),
    ("a3po", "clip_low", 3.0),
    ("opsm", "bound_nats", -1.0),
    ("dppo", "mask_high", 0.0),
    ("dppo", "kl_tau", -1.0),
    ("asympo", "nll_floor", 0.0),
    ("asymre", "delta_v", 0.1),
    ("ppo", "clip_high", 0.0),
    ("dpo", "beta", 0.0),
    ("oapl", "beta", 0.0),
    ("gmpo", "log_clip_low", 0.0),
    ("gmpo", "log_clip_high", -0.1),
    ("sapo", "tau_pos", 0.0),
    ("sapo", "tau_neg", float("inf")),
    ("vespo", "power_pos", 0.0),
    ("vespo", "decay_pos", -1.0),
    ("vespo", "power_neg", 0.0),
    ("vespo", "decay_neg", 0.0),
    ("icepop", "low", 0.0),
    ("icepop", "high", 0.9),
    ("ipo", "threshold", 1.1),
    ("ipo", "kl_tau", -1.0),
    ("m2po_clip", "budget", 0.0),
    ("m2po_clip", "least_low", 1.5),
    ("m2po_clip", "least_high", -0.1),
    ("normalized_tis", "cap", 0.0),
    ("clip_cov", "share", 0.0),
    ("clip_cov", "cov_high", 1.0),
    ("clip_cov", "cov_low", float("nan")),
    ("clip_cov", "clip_high", 0.0),
    ("kl_cov", "share", 1.1),
    ("kl_cov", "penalty", -1.0),
]


@pytest.mark.parametrize(("name", "option", "value"), OUT_OF_RANGE)
def test_out_of_range_value_names_field_and_range(name: str, option: str, value: float) -> None:
    with pytest.raises(ConfigError, match=option) as caught:
        build_loss(name, options={option: value})
    assert option in caught.value.remedy


RANGES = {
    "[0, 1]": "clip_low least_low negatives negative_low sharpness power",
    "(0, 1]": "clip low share mask_low mask_high threshold",
    "[0, 1)": "veto",
    "[0, inf)": "kl_beta kl_switch kl_tau bound_nats penalty negative_high least_high",
    "[1, inf)": "high",
    "(0, 20]": "log_ratio_bound",
    "(1.2, inf)": "delta",  # above 1 + clip_high
    "(-inf, inf)": "cov_low",
    "(1, inf]": "cov_high",  # above cov_low
    "(-inf, 0]": "delta_v",
    "(0, inf)": "clip_high cap budget nll_floor behavior_cap beta log_weight_bound log_clip_low log_clip_high"
    " log_clip_dual tau_pos tau_neg power_pos power_neg decay_pos decay_neg",
}
"""Options by the interval in which they have a meaning: probabilities and shares, factors, divergences."""


@pytest.mark.parametrize("name", OFFERED)
def test_the_range_of_every_option_is_that_of_its_meaning(name: str) -> None:
    range_of = {option: interval for interval, options in RANGES.items() for option in options.split()}
    config_type = loss_by_name(name).config_type
    for field in fields(config_type):
        if not isinstance(field.default, str):
            with pytest.raises(ConfigError) as caught:
                config_type(**{field.name: math.nan})
            assert caught.value.remedy.endswith(f" within {range_of[field.name]}"), field.name


@pytest.mark.parametrize(
    ("open_low", "open_high", "interval"),
    [(False, False, "[2, 3]"), (True, False, "(2, 3]"), (False, True, "[2, 3)"), (True, True, "(2, 3)")],
)
def test_a_bracket_takes_the_end_of_its_range_and_a_parenthesis_does_not(
    open_low: bool, open_high: bool, interval: str
) -> None:
    def passes(value: float) -> bool:
        try:
            require_between("x", value, 2.0, 3.0, open_low=open_low, open_high=open_high)
        except ConfigError as error:
            return error.remedy != f"Set x within {interval}"
        return True

    assert [passes(value) for value in (1.9, 2.0, 2.1, 2.9, 3.0, 3.1)] == [
        False, interval[0] == "[", True, True, interval[-1] == "]", False,
    ]  # fmt: skip


def test_a_value_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"clip_low.*number"):
        build_loss("grpo", options={"clip_low": "wide"})


def test_an_unknown_taper_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="taper") as caught:
        build_loss("gepo_t", options={"taper": "sequnce"})
    assert "sequence" in caught.value.remedy


def test_combinations_without_meaning_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"aggregation\.kind"):
        build_loss("dpo", aggregation=AggregationConfig(kind="token_mean"))
    with pytest.raises(ConfigError, match=r"advantage\.kind"):
        build_loss("asymre", advantage=AdvantageConfig(kind="mean_std"))
    with pytest.raises(ConfigError, match="max_completion_tokens"):
        build_loss("dr_grpo")
    with pytest.raises(ConfigError, match="max_completion_tokens"):
        build_loss("luspo")


def test_the_papers_settings_are_the_defaults() -> None:
    knobs = {name: (loss_by_name(name).advantage, loss_by_name(name).aggregation) for name in BUILTIN_LOSSES}
    assert knobs["grpo"] == ("mean_std", "seq_mean")
    assert knobs["dr_grpo"] == ("mean", "fixed_length")
    assert knobs["dapo"] == ("mean_std", "token_mean")
    assert knobs["oapl"] == ("optimal", "seq_mean")
    assert knobs["luspo"] == ("mean_std", "fixed_length")
    assert knobs["bnpo"] == ("beta", "token_mean")
    assert {knobs[name] for name in ("gepo", "gepo_paper", "gepo_t", "gex")} == {("mean", "seq_mean")}


@pytest.mark.parametrize("name", OFFERED)
def test_configs_are_frozen_with_a_default_for_every_field(name: str) -> None:
    config_type = loss_by_name(name).config_type
    config = config_type()
    for field in fields(config_type):
        with pytest.raises(AttributeError):
            setattr(config, field.name, 1.0)


@pytest.mark.parametrize(
    ("loss", "option", "value", "expected"),
    [
        ("gepo_t", "cap", "2", "number"),
        ("gepo_t", "cap", True, "number"),
        ("gepo_t", "cap", math.nan, "number"),
        ("gepo_t", "cap", math.inf, "number"),
        ("gepo_t", "cap", 10**400, "number"),
        ("gepo_t", "cap", None, "number"),
        ("gepo_t", "taper", 1, "'sequence'"),
        ("grpo", "clip_low", [1], "number"),
        ("gepo", "clip", "None", "number"),
    ],
)
def test_option_of_wrong_type_names_the_right_one(loss: str, option: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError, match=repr(option)) as caught:
        build_loss(loss, options={option: value})
    assert expected in caught.value.remedy


def test_optional_options_and_integers() -> None:
    assert build_loss("gepo", options={"clip": None}).config.clip is None
    assert build_loss("gepo_t", options={"cap": 3}).config.cap == 3


PLUGIN = """
from dataclasses import dataclass
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.ratios import terms_of
from p2prl.algorithms.surrogates import weighted_logprob

@dataclass(frozen=True, kw_only=True)
class Config:
    scale: float = 1.0

def unit_scaled(policy_logprobs_BGT, batch, cfg, aggregation):
    terms = terms_of(policy_logprobs_BGT, batch)
    ones_BGT = terms.advantages_BGT * 0 + cfg.scale
    return weighted_logprob(ones_BGT, ones_BGT < 0, terms, batch, aggregation)

UNIT_SCALED = LossSpec(name="unit_scaled", function=unit_scaled, config_type=Config)
"""


def test_a_loss_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"p2prl.losses": {"unit_scaled": "unit_loss:UNIT_SCALED", "unit_alias": "unit_loss:UNIT_SCALED"}}
    install_package(tmp_path, monkeypatch, modules={"unit_loss": PLUGIN}, entry_points=entries)
    assert LOSSES.names() == (*BUILTIN_LOSSES, "unit_alias", "unit_scaled")
    policy, batch = random_batch(1)
    doubled = build_loss("unit_scaled", options={"scale": 2.0}).loss(policy, batch).loss
    torch.testing.assert_close(doubled, 2 * build_loss("reinforce").loss(policy, batch).loss)
    with pytest.raises(ConfigError, match="'unit_alias' has the name 'unit_scaled'"):
        build_loss("unit_alias")
