"""The `[loss]` table: the pipeline it builds, and refusals that name the setting and a remedy."""

from __future__ import annotations

import tomllib

import pytest

from p2prl.algorithms.loss_registry import BUILTIN_LOSSES, loss_by_name
from p2prl.algorithms.reward_spec import parse_reward
from p2prl.config.loss_config import check_dynamic_sampling
from p2prl.config.new_run import RunSettings
from p2prl.config.toml_tables import parse
from p2prl.errors import ConfigError
from p2prl.learner.training.loss_pipeline import LossPipelineConfig
from p2prl.protocol.manifests import Sampling

SAMPLING = Sampling(1.0, 8, 8)


def built(text: str, sampling: Sampling = SAMPLING, reward: str = "success") -> LossPipelineConfig:
    settings = parse(RunSettings, tomllib.loads(text), where="run.toml")
    return settings.loss.build(sampling, parse_reward(reward))


@pytest.mark.parametrize("name", BUILTIN_LOSSES)
def test_every_loss_can_be_named_in_a_run(name: str) -> None:
    objective = built(f'[loss]\nname = "{name}"').objective
    assert objective.spec.name == name
    assert objective.advantage.kind == loss_by_name(name).advantage
    if objective.aggregation.kind == "fixed_length":
        assert objective.aggregation.max_completion_tokens == SAMPLING.max_new_tokens


def test_options_and_guards_are_applied() -> None:
    config = built(
        """
        [loss]
        name = "gex"
        options = {cap = 3.0, taper = "token"}
        advantage = "mean_std"
        aggregation = "delta_l"
        guards = {kl_brake = 0.05, vcpo = true, second_moment = 0.04, negative_tail = 0.5, ess_warning = 0.1}
        trust = {probation_groups = 8, cap = 0.5, max_rise_nats = 0.2}
        reference = {kind = "ema", beta = 0.01, ema_rate = 0.002}
        """
    )
    objective = config.objective
    assert objective.spec.name == "gex"
    assert (objective.config.cap, objective.config.taper) == (3.0, "token")
    assert (objective.advantage.kind, objective.aggregation.kind) == ("mean_std", "delta_l")
    assert objective.aggregation.max_completion_tokens == 8
    assert (config.guards.kl_brake, config.guards.vcpo, config.guards.ess_warning) == (0.05, True, 0.1)
    assert config.probation_loss is None
    assert (config.probation.cap, config.reference.beta) == (0.5, 0.01)


def test_probation_loss_is_applied() -> None:
    probation_loss = built('[loss]\ntrust = {probation_groups = 8, loss = "asymre"}').probation_loss
    assert probation_loss is not None
    assert probation_loss.spec.name == "asymre"


@pytest.mark.parametrize(
    ("text", "named", "remedy"),
    [
        ('name = "gepot"', "loss.name", "gepo_t"),
        ('name = "zzz"', "loss.name", "gepo_t"),
        ('name = "auto"', "loss.name", "topr"),
        ('name = "gepo_t"\noptions = {capp = 2}', "capp", "cap"),
        ('name = "gepo_t"\noptions = {cap = -1}', "cap", "within"),
        ('name = "gepo_t"\noptions = {cap = "two"}', "cap", "number"),
        ('advantage = "men"', "loss.advantage", "mean"),
        ('aggregation = "tokenmean"', "loss.aggregation", "token_mean"),
        ("guard = {}", "'guard'", "guards"),
        ("guards = {kl_break = 0.05}", "kl_break", "kl_brake"),
        ("guards = {kl_brake = 0}", "loss.guards.kl_brake", "above 0"),
        ("trust = {cap = 9}", "loss.trust.cap", "trusted_cap"),
        ('name = "asymre"\nadvantage = "mean_std"', "advantage.kind", "mean"),
        ('name = "dpo"\naggregation = "token_mean"', "aggregation.kind", "seq_mean"),
        ('name = "m2po"\nguards = {second_moment = 0.04}', "second_moment", "budget"),
        ('name = "dpo"\nguards = {negative_tail = 0.5}', "negative_tail", "Remove"),
        ('name = "dpo"\ntrust = {probation_groups = 8}', "probation_groups", "Remove"),
        ('trust = {probation_groups = 8, loss = "gspo"}', "loss.trust.loss", "asympo"),
        ('trust = {probation_groups = 8, loss = "asimpo"}', "loss.trust.loss", "asympo"),
        ('trust = {loss = "asympo"}', "loss.trust.loss", "probation_groups"),
        ('trust = {probation_groups = 8, loss = "reinforce"}', "loss.trust.loss", "asympo, asymre"),
        ("trust = {cap = 0.5}", "loss.trust.cap", "probation_groups"),
        ("trust = {max_fall_nats = 1.0}", "loss.trust.max_fall_nats", "probation_groups"),
        ('trust = {probation_groups = 8, loss = "asympo", cap = 0.5}', "loss.trust.cap", "loss.trust.loss"),
        ('trust = {probation_groups = 8, loss = "asympo", max_rise_nats = 0.2}', "max_rise_nats", "loss.trust.loss"),
        ('reference = {kind = "first", beta = 0.1, ema_rate = 0.01}', "loss.reference.ema_rate", "ema"),
        ("options = {nll_floor = 0.1}", "nll_floor", "sharpness"),
        ("reference = {beta = 0.1}", "loss.reference.beta", "kind"),
        ('reference = {kind = "first"}', "loss.reference.kind", "beta"),
        ('reference = {kind = "last"}', "kind", ""),
        ('reference = {kind = "ema", ema_rate = 0.0}', "loss.reference.ema_rate", "within"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(text: str, named: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        built(f"[loss]\n{text}")
    assert named in str(caught.value)
    assert remedy in caught.value.remedy


def test_one_completion_per_prompt_has_no_baseline() -> None:
    single = Sampling(1.0, 8, 1)
    with pytest.raises(ConfigError, match=r"loss\.advantage") as caught:
        built("[loss]", single)
    assert "--group-size" in caught.value.remedy
    for kind in ("none", "reinforce_pp"):
        built(f'[loss]\nname = "reinforce"\nadvantage = "{kind}"', single)


@pytest.mark.parametrize(
    "text",
    [
        'name = "asymre"',
        'name = "dpo"\nadvantage = "none"',
        'advantage = "none"\ntrust = {probation_groups = 8, loss = "asympo"}',
    ],
)
def test_losses_that_need_several_completions_say_so(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        built(f"[loss]\n{text}", Sampling(1.0, 8, 1))
    assert "--group-size 2 or more" in caught.value.remedy
    assert "advantage" not in caught.value.remedy


def test_nll_floor_needs_sharpness_or_asympo() -> None:
    built("[loss]\noptions = {sharpness = 1.0, nll_floor = 0.1}")
    built('[loss]\nname = "asympo"\noptions = {nll_floor = 0.1}')


def test_dpo_takes_a_reference_without_a_penalty() -> None:
    assert built('[loss]\nname = "dpo"\nreference = {kind = "first"}').reference.beta == 0


@pytest.mark.parametrize("reward", ["success+0.2*process:clip", "success+outcome", "2*success"])
@pytest.mark.parametrize("loss", ['name = "bnpo"', 'advantage = "beta"'])
def test_beta_advantage_refuses_rewards_above_one(loss: str, reward: str) -> None:
    with pytest.raises(ConfigError, match="beta") as caught:
        built(f"[loss]\n{loss}", reward=reward)
    assert 'loss.advantage = "mean"' in caught.value.remedy
    built(f"[loss]\n{loss}", reward="0.5*success")
    built('[loss]\nname = "bnpo"\nadvantage = "mean"', reward=reward)


STEPS = "success+0.2*process:clip+delta"


def test_steps_are_credited_where_the_reward_judges_them() -> None:
    assert built("").credits_steps is False
    assert built("", reward=STEPS).credits_steps is True
    assert built('[loss]\ncredit = "completion"', reward=STEPS).credits_steps is False
    assert built('[loss]\ncredit = "completion"\nname = "gspo"', reward=STEPS).credits_steps is False
    with pytest.raises(ConfigError, match="judges no steps"):
        built('[loss]\ncredit = "step"')
    with pytest.raises(ConfigError, match="judges no steps"):
        built('[loss]\ncredit = "step"', reward="success+outcome")


@pytest.mark.parametrize("name", [name for name in BUILTIN_LOSSES if name != "bnpo"])
def test_losses_without_token_advantages_refuse_step_rewards(name: str) -> None:
    if loss_by_name(name).token_advantages:
        assert built(f'[loss]\nname = "{name}"', reward=STEPS).credits_steps is True
        return
    with pytest.raises(ConfigError, match="one advantage per completion") as caught:
        built(f'[loss]\nname = "{name}"', reward=STEPS)
    assert 'loss.credit = "completion"' in caught.value.remedy
    assert "gepo_t" in caught.value.remedy
    assert "gspo" not in caught.value.remedy


def test_an_advantage_without_meaning_for_steps_is_refused() -> None:
    with pytest.raises(ConfigError, match="no meaning for the rewards of steps"):
        built('[loss]\nadvantage = "opo"', reward=STEPS)
    assert built('[loss]\nadvantage = "mean_std"', reward=STEPS).credits_steps is True


def test_ppo_has_a_value_head_unless_it_is_turned_off() -> None:
    assert built('[loss]\nname = "ppo"\nvalue = {clip = 0.5}').value is not None
    assert built('[loss]\nname = "ppo"\nvalue = {head = false}').value is None
    assert built("").value is None
    one = Sampling(1.0, 8, 1)
    assert built('[loss]\nname = "ppo"', sampling=one).value is not None
    with pytest.raises(ConfigError, match="one completion per prompt"):
        built('[loss]\nname = "ppo"\nvalue = {head = false}', sampling=one)
    with pytest.raises(ConfigError, match="topr has no value head"):
        built("[loss]\nvalue = {clip = 0.5}")
    with pytest.raises(ConfigError, match="the value head estimates advantages"):
        built('[loss]\nname = "ppo"\nadvantage = "mean"')


@pytest.mark.parametrize(
    ("text", "sampling"),
    [
        ('name = "asymre"', SAMPLING),
        ('advantage = "none"', SAMPLING),
        ('advantage = "reinforce_pp"', SAMPLING),
        ('name = "ppo"', SAMPLING),
        ('advantage = "none"', Sampling(1.0, 8, 1)),
    ],
)
def test_groups_of_equal_rewards_are_not_left_out_of_what_learns_from_them(text: str, sampling: Sampling) -> None:
    with pytest.raises(ConfigError, match="dynamic_sampling has no meaning") as caught:
        check_dynamic_sampling(built(f"[loss]\n{text}", sampling), sampling)
    assert "0" in caught.value.remedy
    for fine in ('name = "topr"', 'name = "dpo"', 'name = "ppo"\nvalue = {head = false}'):
        check_dynamic_sampling(built(f"[loss]\n{fine}"), SAMPLING)
