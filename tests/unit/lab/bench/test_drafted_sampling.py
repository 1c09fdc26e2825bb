"""Drafted sampling against sampling one token after another, and the drafts of letter chains."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from p2prl.errors import LocalProtocolError
from p2prl_lab.bench.training.decoder_shape import initial_weights
from p2prl_lab.bench.training.drafted_sampling import Uniforms, complete
from p2prl_lab.bench.training.environments import Environment, environment_by_name
from p2prl_lab.bench.training.letter_chains import LetterChain
from p2prl_lab.bench.training.seeded_noise import seeded_uniforms
from p2prl_lab.bench.training.stacked_decoder import StackedDecoder
from p2prl_lab.bench.training.stacked_sampling import sample
from p2prl_lab.bench.training.warm_start import warm_start

ENVIRONMENT = environment_by_name("arrive40:32@24x1")


@pytest.fixture(scope="module")
def half_taught() -> Tensor:
    """Two policies that have seen some demonstrations, float64: some drafts fit them, some do not."""
    return warm_start(ENVIRONMENT, (1, 2), steps=60).double()


@pytest.mark.parametrize("kind", ["sampled", "greedy", "both"])
@pytest.mark.parametrize("scale", [1.0, 0.0], ids=["half taught", "uniform"])
def test_drafts_change_nothing(half_taught: Tensor, kind: str, scale: float) -> None:
    """Whether drafts fit the policy, mostly do or never: tokens, log-probs, entropies and masks are the same."""
    weights, size = scale * half_taught, 1 if kind == "greedy" else 4
    prompts = [[ENVIRONMENT.prompt(100 * policy + i) for i in range(3)] for policy in range(2)]
    tokens = torch.tensor([[ENVIRONMENT.prompt_tokens(prompt) for prompt in row] for row in prompts])

    def noise() -> Uniforms | None:
        return None if kind == "greedy" else seeded_uniforms((5, 6), 1)

    options = {"group_size": size, "entropies": True, "greedy_last": kind == "both"}
    drafted = complete(ENVIRONMENT, weights, prompts, tokens, uniforms=noise(), **options)  # type: ignore[arg-type]
    one_by_one = sample(
        ENVIRONMENT.shape, weights, tokens, max_new_tokens=ENVIRONMENT.max_new_tokens,
        end_token=ENVIRONMENT.end_token, uniforms=noise(), **options,  # type: ignore[arg-type]
    )  # fmt: skip
    assert torch.equal(drafted.tokens_MBGT, one_by_one.tokens_MBGT)
    assert torch.equal(drafted.mask_MBGT, one_by_one.mask_MBGT)
    assert torch.equal(drafted.finished_MBG, one_by_one.finished_MBG)
    torch.testing.assert_close(drafted.logprobs_MBGT, one_by_one.logprobs_MBGT.to(drafted.logprobs_MBGT))
    assert drafted.entropies_MBGT is not None
    assert one_by_one.entropies_MBGT is not None
    torch.testing.assert_close(drafted.entropies_MBGT, one_by_one.entropies_MBGT.to(drafted.entropies_MBGT))


def one_by_one_greedy(weights: Tensor, tokens: Tensor) -> Tensor:
    """Greedy completions (B, T) of the first policy."""
    return sample(
        ENVIRONMENT.shape, weights, tokens, group_size=1, max_new_tokens=ENVIRONMENT.max_new_tokens,
        end_token=ENVIRONMENT.end_token, uniforms=None,
    ).tokens_MBGT[0, :, 0]  # fmt: skip


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each round of drafts."""
    counts = list[int]()
    original = StackedDecoder.before_tokens

    def counted(self, prefix, prompts_MR, tokens_MRT):  # type: ignore[no-untyped-def]
        counts.append(prompts_MR.numel())
        return original(self, prefix, prompts_MR, tokens_MRT)

    monkeypatch.setattr(StackedDecoder, "before_tokens", counted)
    return counts


PROMPTS = [[ENVIRONMENT.prompt(i) for i in range(3)]]
TOKENS = torch.tensor([[ENVIRONMENT.prompt_tokens(prompt) for prompt in row] for row in PROMPTS])


def test_a_policy_that_follows_the_rule_is_sampled_in_few_rows(
    rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts are checked whole: a policy that always does what they say takes one row a prompt."""
    weights = initial_weights(ENVIRONMENT.shape, 0).unsqueeze(0)
    greedy = one_by_one_greedy(weights, TOKENS)
    known = dict(zip(PROMPTS[0], greedy.tolist(), strict=True))
    monkeypatch.setattr(Environment, "drafted_tokens", lambda _, prompt, begun: known[prompt][len(begun) :])
    found = complete(ENVIRONMENT, weights, PROMPTS, TOKENS, group_size=8, uniforms=None)
    assert torch.equal(found.tokens_MBGT[0], greedy.unsqueeze(1).expand(-1, 8, -1))
    assert rows == [3]


@pytest.mark.parametrize(("wrong", "rounds"), [(range(40, 160, 40), 4), (range(0, 160, 2), 1)])
def test_drafts_are_given_up_as_soon_as_they_look_slower(
    rows: list[int], monkeypatch: pytest.MonkeyPatch, wrong: range, rounds: int
) -> None:
    """Three wrong tokens in a completion take four rounds; one in two ends it after the first."""
    weights = initial_weights(ENVIRONMENT.shape, 0).unsqueeze(0)
    greedy = one_by_one_greedy(weights, TOKENS)
    known = dict(zip(PROMPTS[0], greedy.tolist(), strict=True))

    def drafted(_: Environment, prompt: str, begun: list[int]) -> list[int]:
        tokens = [(token + 1) % 10 if place in wrong else token for place, token in enumerate(known[prompt])]
        return tokens[len(begun) :]

    monkeypatch.setattr(Environment, "drafted_tokens", drafted)
    found = complete(ENVIRONMENT, weights, PROMPTS, TOKENS, group_size=8, uniforms=None)
    assert torch.equal(found.tokens_MBGT[0], greedy.unsqueeze(1).expand(-1, 8, -1))
    assert rows == [3] * rounds


@pytest.mark.parametrize("flipped", [False, True])
def test_a_draft_goes_on_from_wherever_a_completion_is(flipped: bool) -> None:
    task = environment_by_name("arrive40:1").task
    assert isinstance(task, LetterChain)
    task = replace(task, flipped=flipped)
    prompt = task.prompt(3)
    right = task.draft(prompt, "")
    assert task.score(prompt, right, True).reward == 1.0
    assert all(task.draft(prompt, right[:cut]) == right[cut:] for cut in range(len(right) + 1))
    assert task.draft(prompt, right + "7") == ""
    # A wrong value is where the rest goes on from; what is no digit counts as one.
    wrong = right[:2] + str((int(right[2]) + 1) % 10)
    rest = task.draft(prompt, wrong)
    assert (rest[0], rest[1]) == (";", wrong[2])
    assert task.draft(prompt, wrong + ";") == rest[1:]
    assert task.draft(prompt, "==" + "=")[:2] == ";0"


def test_short_tasks_and_others_have_no_drafts() -> None:
    for name in ("arrive8:32", "flip8:64", "march512", "chain4"):
        environment = environment_by_name(name)
        assert environment.draft is None
        with pytest.raises(LocalProtocolError, match="no drafts"):
            environment.drafted_tokens(environment.prompt(0), [])
