"""The optimizer, the warm start and the training loop against independent computations."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from p2prl.algorithms.global_amsgrad import GlobalAmsgrad
from p2prl.errors import ConfigError, IntegrityError, LocalProtocolError
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl_lab.bench.staleness import delayed_training as training_module
from p2prl_lab.bench.staleness.delay_laws import parse_law
from p2prl_lab.bench.staleness.delayed_training import DelayedTraining
from p2prl_lab.bench.staleness.methods import parse_method
from p2prl_lab.bench.staleness.seed_log import SeedResult
from p2prl_lab.bench.training import drafted_sampling
from p2prl_lab.bench.training.decoder_shape import initial_weights
from p2prl_lab.bench.training.environments import environment_by_name
from p2prl_lab.bench.training.stacked_adam import StackedAdam
from p2prl_lab.bench.training.stacked_decoder import completion_logprobs
from p2prl_lab.bench.training.stacked_sampling import sample
from p2prl_lab.bench.training.training_plan import TrainingPlan
from p2prl_lab.bench.training.warm_start import warm_path, warm_start, warm_start_of

ENVIRONMENT = environment_by_name("chain4")
PLAN = TrainingPlan(updates=6, evaluate_every=1, evaluation_prompts=16, final_prompts=32, learning_rate=2e-3)


@functools.cache
def learned() -> Tensor:
    """Weights of three seeds after some training: untrained ones never finish a completion, so they get no reward."""
    return warm_start(ENVIRONMENT, range(3), steps=40)


def start(seeds: range) -> Tensor:
    return learned()[seeds.start : seeds.stop]


def trained(method: str, delay: str, seeds: range) -> list[SeedResult]:
    parsed = parse_method(method, max_completion_tokens=ENVIRONMENT.max_new_tokens)
    return DelayedTraining(ENVIRONMENT, parsed, parse_law(delay), PLAN, seeds, start(seeds)).run()


@pytest.mark.parametrize(("beta2", "amsgrad"), [(0.99, False), (0.999, False), (0.99, True)])
def test_the_optimizer_is_clipped_adamw_row_by_row(beta2: float, amsgrad: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(3, 40, generator=generator, dtype=torch.float64)
    rows = [row.clone().requires_grad_() for row in weights]
    rates = (1e-2, 3e-3, 5e-2)
    adams = [torch.optim.AdamW([row], lr=rate, betas=(0.9, beta2), weight_decay=0.0) for row, rate in zip(rows, rates, strict=True)]  # fmt: skip  # noqa: E501
    stacked = StackedAdam.fresh(weights, beta2=beta2, amsgrad=amsgrad)
    levels = [GlobalAmsgrad(beta2=beta2) for _ in rows]
    for number in range(1, 8):
        gradient = torch.randn(3, 40, generator=generator, dtype=torch.float64) * torch.tensor([[0.01], [0.3], [4.0]])
        gradient *= 0.01 if number > 3 else 1.0
        norms = stacked.step(weights, gradient, number=number, rate_M=torch.tensor(rates, dtype=torch.float64))
        for index, (row, adam) in enumerate(zip(rows, adams, strict=True)):
            row.grad = gradient[index].clone()
            norm = torch.nn.utils.clip_grad_norm_([row], 1.0)
            assert float(norms[index]) == pytest.approx(float(norm), abs=1e-12)
            factor = float(levels[index].factor(norm.clamp(max=1.0))) if amsgrad else 1.0
            assert factor == 1.0 or number > 1
            adam.param_groups[0]["lr"] = rates[index] * factor
            adam.step()
    torch.testing.assert_close(weights, torch.stack([row.detach() for row in rows]), rtol=0, atol=1e-9)


def test_the_addition_is_given_to_the_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def half(_: GlobalAmsgrad, norm: Tensor) -> Tensor:
        seen.append(norm)
        return torch.full_like(norm, 0.5)

    monkeypatch.setattr(GlobalAmsgrad, "factor", half)
    halved = trained("grpo+amsgrad+lr=2e-3", "const:4", range(2))
    assert len(seen) == PLAN.updates
    assert halved == trained("grpo+lr=1e-3", "const:4", range(2))
    assert halved != trained("grpo+lr=2e-3", "const:4", range(2))


def test_tokens_are_those_of_the_chain4_models_tokenizer() -> None:
    loaded = tiny_model("chain4")
    codec = TextCodec(loaded.tokenizer, loaded.model)
    prompt, completion = ENVIRONMENT.demonstration(3)
    assert tuple(ENVIRONMENT.prompt_tokens(prompt)) == codec.encode(prompt)
    assert tuple(ENVIRONMENT.encode(completion)) == codec.encode(completion)[1:]
    assert {ENVIRONMENT.end_token} == codec.stop_ids
    assert ENVIRONMENT.shape.vocabulary == len(loaded.tokenizer)


def test_rewards_need_a_finished_readable_completion() -> None:
    prompt = "3+4*2-7="
    good = [*ENVIRONMENT.encode("747#7"), ENVIRONMENT.end_token]
    assert ENVIRONMENT.reward(prompt, good, finished=True) == 1.0
    assert ENVIRONMENT.reward(prompt, good[:-1], finished=False) == 0.0
    assert ENVIRONMENT.reward(prompt, [ENVIRONMENT.begin_token, *good], finished=True) == 0.0


def test_warm_start_trains_each_seed_as_if_alone() -> None:
    together = warm_start(ENVIRONMENT, [0, 1], steps=3)
    torch.testing.assert_close(together[1:], warm_start(ENVIRONMENT, [1], steps=3), rtol=0, atol=1e-5)
    prompt, completion = ENVIRONMENT.demonstration(12345)
    prompts = torch.tensor([ENVIRONMENT.prompt_tokens(prompt)]).expand(2, 1, -1)
    tokens = torch.tensor([*ENVIRONMENT.encode(completion), ENVIRONMENT.end_token]).expand(2, 1, 1, -1)
    after = completion_logprobs(ENVIRONMENT.shape, learned()[:2], prompts, tokens)
    fresh = torch.stack([initial_weights(ENVIRONMENT.shape, seed) for seed in range(2)])
    before = completion_logprobs(ENVIRONMENT.shape, fresh, prompts, tokens)
    assert bool((after.sum(-1) > before.sum(-1)).all())


def test_warm_starts_are_cached_and_broken_ones_refused(tmp_path: Path) -> None:
    marked = torch.full((ENVIRONMENT.shape.size(),), 0.5)
    (tmp_path / "warm").mkdir()
    path = warm_path(ENVIRONMENT, 4, tmp_path / "warm")
    save_file({"weights": marked}, path)
    assert torch.equal(warm_start_of(ENVIRONMENT, [4], tmp_path), marked.unsqueeze(0))
    save_file({"weights": marked[1:].clone()}, path)
    with pytest.raises(IntegrityError, match="another decoder"):
        warm_start_of(ENVIRONMENT, [4], tmp_path)
    path.write_bytes(b"nothing")
    with pytest.raises(IntegrityError, match="not a warm start"):
        warm_start_of(ENVIRONMENT, [4], tmp_path)


def test_a_seed_is_independent_of_others_and_repeats() -> None:
    together = trained("gepo_t+brake", "unif:3", range(1, 3))
    alone = trained("gepo_t+brake", "unif:3", range(2, 3))
    again = trained("gepo_t+brake", "unif:3", range(2, 3))
    assert again == alone
    assert together[1].seed == 2
    assert together[1].curve("sampled") == alone[0].curve("sampled")
    assert together[1].kl_mean == pytest.approx(alone[0].kl_mean, abs=1e-5)
    assert together[0].curve("sampled") != together[1].curve("sampled")


def test_a_run_holds_the_results_of_shorter_ones() -> None:
    method = parse_method("gepo_t", max_completion_tokens=ENVIRONMENT.max_new_tokens)
    short = dataclasses.replace(PLAN, updates=3, evaluation_prompts=8)

    def training(plan: TrainingPlan) -> DelayedTraining:
        return DelayedTraining(ENVIRONMENT, method, parse_law("const:2"), plan, range(2), start(range(2)))

    together = training(PLAN).run_lengths([short])
    assert together == {PLAN: training(PLAN).run(), short: training(short).run()}
    for other in (PLAN, dataclasses.replace(short, learning_rate=1e-4)):
        with pytest.raises(LocalProtocolError, match="does not contain"):
            training(PLAN).run_lengths([other])
    decaying = parse_method("gepo_t+decay=0.1", max_completion_tokens=ENVIRONMENT.max_new_tokens)
    made = DelayedTraining(ENVIRONMENT, decaying, parse_law("const:2"), PLAN, range(1), start(range(1)))
    with pytest.raises(LocalProtocolError, match="does not contain"):
        made.run_lengths([short])


@pytest.mark.parametrize("delay", ["const:2", "unif:3", "weibull:4", "start", "stage:3", "block:2"])
def test_samplers_use_the_policy_given_by_the_delay(delay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record the sampling and the learning weights; the loss's staleness shows the drawn delays."""
    sampled: list[Tensor] = []
    learner: list[Tensor] = []
    labels: list[Tensor] = []

    def watched_sample(shape: Any, weights: Tensor, prompts: Tensor, **rest: Any) -> Any:
        if rest["group_size"] == 8:
            sampled.append(weights.clone())
        return sample(shape, weights, prompts, **rest)

    def watched_logprobs(shape: Any, weights: Tensor, prompts: Tensor, completions: Tensor) -> Tensor:
        learner.append(weights.detach().clone())
        return completion_logprobs(shape, weights, prompts, completions)

    def watched_batch(**fields: Any) -> Any:
        labels.append(fields["staleness_BG"].clone())
        return batch_type(**fields)

    batch_type: Any = training_module.RolloutBatch  # type: ignore[attr-defined]
    monkeypatch.setattr(drafted_sampling, "sample", watched_sample)
    monkeypatch.setattr(training_module, "completion_logprobs", watched_logprobs)
    monkeypatch.setattr(training_module, "RolloutBatch", watched_batch)
    trained("grpo", delay, range(2))
    assert len(sampled) == len(learner) == PLAN.updates
    seen = set()
    for update in range(PLAN.updates):
        for index in range(2):
            staleness = labels[2 * update + index]
            assert staleness.shape == (16, 8)
            for sampler in range(4):
                rows = staleness[4 * sampler : 4 * sampler + 4]
                age = int(rows[0, 0])
                assert bool((rows == age).all())
                assert 0 <= age <= min(update, parse_law(delay).longest)
                seen.add(age)
                own = sampled[update].view(2, -1, sampled[update].shape[1])[index]
                assert torch.equal(own[sampler % len(own)], learner[update - age][index])
    every = {
        "const:2": {0, 1, 2},
        "start": set(range(PLAN.updates)),
        "stage:3": {0, 1, 2},
        "block:2": {0, 1, 2, 3},
    }
    assert seen == every.get(delay, seen)
    assert len(seen) > 2


def test_within_a_group_each_sampler_completes_a_quarter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stored log-probs of each completion are those of the policy that its position in the group names."""
    learner: list[Tensor] = []
    batches: list[Any] = []
    completed: list[tuple[Tensor, Tensor]] = []

    def watched_logprobs(shape: Any, weights: Tensor, prompts: Tensor, completions: Tensor) -> Tensor:
        learner.append(weights.detach().clone())
        completed.append((prompts, completions))
        return completion_logprobs(shape, weights, prompts, completions)

    def watched_batch(**fields: Any) -> Any:
        batches.append(fields)
        return batch_type(**fields)

    batch_type: Any = training_module.RolloutBatch  # type: ignore[attr-defined]
    monkeypatch.setattr(training_module, "completion_logprobs", watched_logprobs)
    monkeypatch.setattr(training_module, "RolloutBatch", watched_batch)
    trained("grpo", "within:peers:const:0/const:1/const:2/const:3", range(2))
    update, index = 4, 1
    fields = batches[2 * update + index]
    assert fields["staleness_BG"].tolist() == [[0, 0, 1, 1, 2, 2, 3, 3]] * 16
    prompts, completions = completed[update]
    for age in range(4):
        own = completion_logprobs(ENVIRONMENT.shape, learner[update - age], prompts, completions)[index]
        mask = fields["mask_BGT"][:, 2 * age : 2 * age + 2]
        stored = fields["behavior_logprobs_BGT"][:, 2 * age : 2 * age + 2]
        torch.testing.assert_close(stored, torch.where(mask, own[:, 2 * age : 2 * age + 2], 0.0), rtol=0, atol=2e-5)


def test_a_methods_own_learning_rate_replaces_the_plans() -> None:
    assert trained("grpo+lr=.002", "const:1", range(1)) == trained("grpo", "const:1", range(1))
    assert trained("grpo+lr=.001", "const:1", range(1)) != trained("grpo", "const:1", range(1))


@pytest.mark.parametrize("addition", ["average", "published"])
def test_averages_are_evaluated_and_published_ones_sampled(addition: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sampled: list[Tensor] = []
    evaluated: list[Tensor] = []
    learner: list[Tensor] = []

    def watched_sample(shape: Any, weights: Tensor, prompts: Tensor, **rest: Any) -> Any:
        if rest["group_size"] == 8:
            sampled.append(weights.clone())
        elif rest.get("greedy_last") or rest["uniforms"] is None:
            # Two for each evaluation: fresh prompts, and some it was trained on.
            evaluated.append(weights.clone())
        return sample(shape, weights, prompts, **rest)

    def watched_logprobs(shape: Any, weights: Tensor, prompts: Tensor, completions: Tensor) -> Tensor:
        learner.append(weights.detach().clone())
        return completion_logprobs(shape, weights, prompts, completions)

    monkeypatch.setattr(drafted_sampling, "sample", watched_sample)
    monkeypatch.setattr(training_module, "completion_logprobs", watched_logprobs)
    trained(f"grpo+{addition}=.3", "const:2", range(1))
    average, averages = learner[0], [learner[0]]
    for done, weights in enumerate(learner[1:], start=1):
        kept = min(0.3, done / (done + 9))
        average = kept * average + (1 - kept) * weights
        averages.append(average)
    assert len(learner) == PLAN.updates
    for got, expected in zip(evaluated[::2], averages, strict=False):
        torch.testing.assert_close(got, expected)
    used = averages if addition == "published" else learner
    for update in range(PLAN.updates):
        torch.testing.assert_close(sampled[update][0], used[max(0, update - 2)][0])


def test_a_replayed_batch_is_an_earlier_one_at_its_true_age(monkeypatch: pytest.MonkeyPatch) -> None:
    worked: list[Tensor] = []
    ages: list[int] = []

    def watched_logprobs(shape: Any, weights: Tensor, prompts: Tensor, completions: Tensor) -> Tensor:
        worked.append(completions)
        return completion_logprobs(shape, weights, prompts, completions)

    def watched_batch(**fields: Any) -> Any:
        ages.append(int(fields["staleness_BG"].max()))
        return batch_type(**fields)

    batch_type: Any = training_module.RolloutBatch  # type: ignore[attr-defined]
    monkeypatch.setattr(training_module, "completion_logprobs", watched_logprobs)
    monkeypatch.setattr(training_module, "RolloutBatch", watched_batch)
    trained("gepo_t+replay=2", "const:1", range(1))
    # Updates 0 and 1 have nothing to replay; from 2 on each batch is followed by the one of two updates before.
    fresh = [worked[0], worked[1], *worked[2::2]]
    assert len(worked) == 2 + 2 * (PLAN.updates - 2)
    for update in range(2, PLAN.updates):
        assert torch.equal(worked[2 * update - 1], fresh[update - 2])
    assert ages == [0, 1, 1, 2, 1, 3, 1, 3, 1, 3]


def test_ratios_are_one_without_delay_only() -> None:
    (fresh,) = trained("grpo", "const:0", range(1))
    assert fresh.weight_max == pytest.approx(1.0, abs=1e-4)
    assert fresh.ess_min == pytest.approx(1.0, abs=1e-4)
    assert fresh.kl_mean == pytest.approx(0.0, abs=1e-5)
    (stale,) = trained("grpo", "const:4", range(1))
    assert stale.ess_min < 0.999
    assert stale.weight_max > 1.01
    assert len(stale.evaluations) == PLAN.updates + 1
    assert stale.last == pytest.approx(sum(reward for _, reward in stale.curve("sampled")[-3:]) / 3)


def test_guards_slow_a_run_down() -> None:
    (plain,) = trained("reinforce", "const:6", range(1))
    (braked,) = trained("reinforce+vcpo", "const:6", range(1))
    assert braked.kl_max < plain.kl_max


def test_illegal_plans_and_seeds_are_refused() -> None:
    with pytest.raises(ConfigError, match="updates"):
        TrainingPlan(updates=50)
    with pytest.raises(ConfigError, match="learning_rate"):
        TrainingPlan(learning_rate=0.0)
    method = parse_method("grpo", max_completion_tokens=8)
    with pytest.raises(ConfigError, match="seed"):
        DelayedTraining(ENVIRONMENT, method, parse_law("const:0"), PLAN, [-1], start(range(1)))


def test_alignment_control_acts_on_what_gradients_have_in_common() -> None:
    plain, loose, strict = (trained(f"grpo{each}", "const:4", range(1)) for each in ("", "+gac=0.9999", "+gac"))
    assert loose[0].evaluations == plain[0].evaluations
    assert strict[0].evaluations != plain[0].evaluations
