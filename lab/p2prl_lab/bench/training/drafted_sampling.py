"""Sampling that guesses how a completion goes on and checks the guess in one forward pass, token by token.

A token is the argmax of the logits plus noise of its own, so it is known as soon as the tokens before it are. All
tokens of a draft are computed at once; up to the first one that the noise decides otherwise they are exactly what
sampling one token after another gives, up to rounding. There the policy's own token is taken, and a new draft goes on
from it. A task with a rule guesses well, and completions with one draft are one row of the forward pass.

Shape legend: M policies, B prompts of each, G completions of a prompt, C = B·G, T completion tokens, V vocabulary, R
distinct drafts of one policy, N completions under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from p2prl_lab.bench.training.environments import Environment
from p2prl_lab.bench.training.stacked_decoder import Prefix, StackedDecoder
from p2prl_lab.bench.training.stacked_sampling import Completions, gumbel_of, sample

_MOST_ROWS = 3
"""Rows of drafts for each completion beyond which guessing has failed: then one token after another is sampled."""

_MOST_AHEAD = 8
"""The same of the rows that a round foretells, which are too many: completions of one prompt fail at one place first. A
policy whose first round settles 33 tokens of 149 took 1.8 rows for each completion; one that is far off settles one."""

Uniforms = Callable[[tuple[int, ...]], Tensor]
Ids = NDArray[np.int64]


def complete(
    environment: Environment,
    weights_MW: Tensor,
    prompts: Sequence[Sequence[str]],
    tokens_MBP: Tensor,
    *,
    group_size: int,
    uniforms: Uniforms | None,
    entropies: bool = False,
    greedy_last: bool = False,
) -> Completions:
    """Completions of M lists of B prompts, as `stacked_sampling.sample` gives them; `tokens_MBP` are their token ids.

    Tasks that can draft are drafted, on a CPU: a card samples a long row in the time of a short one.
    """
    if environment.draft is not None and weights_MW.device.type == "cpu":
        found = _Drafted(environment, weights_MW, prompts, tokens_MBP, group_size, uniforms, greedy_last).run()
        if isinstance(found, Completions):
            return found if entropies else replace(found, entropies_MBGT=None)
        uniforms = found  # the same noise again
    return sample(
        environment.shape,
        weights_MW,
        tokens_MBP,
        group_size=group_size,
        max_new_tokens=environment.max_new_tokens,
        end_token=environment.end_token,
        uniforms=uniforms,
        entropies=entropies,
        greedy_last=greedy_last,
    )


@dataclass(frozen=True)
class _Distinct:
    """The distinct drafts of the completions under way; a policy with fewer than another repeats its first."""

    prompts_MR: Ids
    tokens_MRT: Ids
    row_N: Ids
    """For each completion under way its row of the M·R drafts."""


class _Drafted:
    """One batch of completions; many attributes because they are what every round reads and writes."""

    def __init__(
        self,
        environment: Environment,
        weights_MW: Tensor,
        prompts: Sequence[Sequence[str]],
        tokens_MBP: Tensor,
        group_size: int,
        uniforms: Uniforms | None,
        greedy_last: bool,
    ) -> None:
        self._environment, self._weights_MW, self._tokens_MBP = environment, weights_MW, tokens_MBP
        self._prompts = [prompt for row in prompts for prompt in row for _ in range(group_size)]
        self._rows = (*tokens_MBP.shape[:2], group_size)
        self._limit, self._end = environment.max_new_tokens, environment.end_token
        self._noisy = group_size - greedy_last
        """Completions of a prompt that are sampled; the last may be greedy."""
        self._drawn: list[Tensor] = []
        if uniforms is not None:
            size = (*self._rows[:2], self._noisy, environment.shape.vocabulary)
            self._drawn = [uniforms(size) for _ in range(self._limit)]
        total = len(self._prompts)
        self._tokens_CT = np.full((total, self._limit), self._end, dtype=np.int64)
        self._known_C = np.zeros(total, dtype=np.int64)
        """Tokens of each completion that are settled."""
        self._logprobs_CT, self._entropies_CT = weights_MW.new_zeros(2, total, self._limit)

    @torch.no_grad()
    def run(self) -> Completions | Uniforms | None:
        """The completions, or the noise once more where drafts do not fit the policy."""
        decoder = StackedDecoder(self._environment.shape, self._weights_MW)
        prefix = decoder.prefix(self._tokens_MBP)
        noise_CTV = self._noise()
        pending_N = np.arange(len(self._prompts))
        self._draft(pending_N)
        rows, count = 0, len(self._prompts)
        while len(pending_N):
            distinct = self._distinct(pending_N)
            before, checked = int(self._known_C.sum()), len(pending_N)
            rows += distinct.prompts_MR.size
            pending_N = self._round(decoder, prefix, noise_CTV, pending_N, distinct)
            pace = (int(self._known_C.sum()) - before) / checked
            ahead = int((self._limit - self._known_C[pending_N]).sum()) / pace
            if ahead and (rows > _MOST_ROWS * count or rows + ahead > _MOST_AHEAD * count):
                return self._drawn_again()
            self._draft(pending_N)
        return self._completions()

    def _noise(self) -> Tensor | None:
        if not self._drawn:
            return None
        policies, prompts, size = self._rows
        drawn = torch.stack([gumbel_of(uniforms) for uniforms in self._drawn], dim=3)
        if self._noisy < size:
            drawn = torch.cat([drawn, torch.zeros_like(drawn[:, :, :1])], dim=2)
        return drawn.view(policies * prompts * size, self._limit, -1)

    def _drawn_again(self) -> Uniforms | None:
        if not self._drawn:
            return None
        drawn = iter(self._drawn)
        return lambda _: next(drawn)

    def _draft(self, pending_N: Ids) -> None:
        """Fill what is not settled of these completions with a guess, and the end after it."""
        guessed: dict[tuple[str, bytes], Ids] = {}
        for row in pending_N.tolist():
            known = self._tokens_CT[row, : self._known_C[row]]
            key = self._prompts[row], known.tobytes()
            if key not in guessed:
                guess = self._environment.drafted_tokens(self._prompts[row], known.tolist())
                guessed[key] = np.array(guess[: self._limit - len(known)], dtype=np.int64)
            rest = self._tokens_CT[row, len(known) :]
            rest[:] = self._end
            rest[: len(guessed[key])] = guessed[key]

    def _distinct(self, pending_N: Ids) -> _Distinct:
        policies, prompts, size = self._rows
        lists: list[list[int]] = [[] for _ in range(policies)]
        places: dict[tuple[int, bytes], int] = {}
        longest = int((self._tokens_CT[pending_N] != self._end).sum(axis=1).max())
        tokens_NT = self._tokens_CT[pending_N, : min(longest + 1, self._limit)]
        owners, found = (pending_N // size).tolist(), []
        for place, (owner, tokens) in enumerate(zip(owners, tokens_NT, strict=True)):
            policy, key = owner // prompts, (owner, tokens.tobytes())
            if key not in places:
                places[key] = len(lists[policy])
                lists[policy].append(place)
            found.append((policy, places[key]))
        most = max(map(len, lists))
        chosen_MR = np.array([(each + (each[:1] or [0]) * most)[:most] for each in lists])
        return _Distinct(
            prompts_MR=(pending_N // size % prompts)[chosen_MR],
            tokens_MRT=tokens_NT[chosen_MR],
            row_N=np.array([policy * most + row for policy, row in found]),
        )

    def _round(
        self, decoder: StackedDecoder, prefix: Prefix, noise_CTV: Tensor | None, pending_N: Ids, distinct: _Distinct
    ) -> Ids:
        """Check the drafts; the completions that are still under way."""
        tokens_MRT = torch.from_numpy(distinct.tokens_MRT)
        features = decoder.before_tokens(prefix, torch.from_numpy(distinct.prompts_MR), tokens_MRT)
        policies, rows, length = tokens_MRT.shape
        logits_RTV = decoder.logits(features).view(policies * rows, length, -1)
        every_RTV = torch.log_softmax(logits_RTV, dim=-1)
        entropies_RT = -(every_RTV.exp() * every_RTV).sum(dim=-1)
        row_N, at_N = torch.from_numpy(distinct.row_N), torch.from_numpy(pending_N)
        noisy_NTV = logits_RTV[row_N]
        if noise_CTV is not None:
            noisy_NTV = noisy_NTV + noise_CTV[at_N, :length]
        chosen_NT = noisy_NTV.argmax(dim=-1)
        self._logprobs_CT[at_N, :length] = every_RTV[row_N].gather(-1, chosen_NT.unsqueeze(-1)).squeeze(-1)
        self._entropies_CT[at_N, :length] = entropies_RT[row_N]
        chosen, drafted = chosen_NT.numpy(), self._tokens_CT[pending_N, :length]
        # The first end, or difference, is the last token that is known; without either all of them are.
        stops = (chosen != drafted) | (chosen == self._end)
        last = np.where(stops.any(axis=1), stops.argmax(axis=1), length - 1)
        self._tokens_CT[pending_N, last] = chosen[np.arange(len(last)), last]
        self._known_C[pending_N] = last + 1
        ended = self._tokens_CT[pending_N, last] == self._end
        under_way: Ids = pending_N[~ended & (last + 1 < self._limit)]
        return under_way

    def _completions(self) -> Completions:
        length = int(self._known_C.max())
        mask = torch.from_numpy(np.arange(length) < self._known_C[:, None])
        tokens = torch.from_numpy(self._tokens_CT[:, :length])
        tokens = torch.where(mask, tokens, self._end)
        shape = (*self._rows, length)
        return Completions(
            tokens_MBGT=tokens.view(shape),
            logprobs_MBGT=torch.where(mask, self._logprobs_CT[:, :length], 0.0).view(shape),
            mask_MBGT=mask.view(shape),
            finished_MBG=(tokens == self._end).any(dim=-1).view(self._rows),
            entropies_MBGT=torch.where(mask, self._entropies_CT[:, :length], 0.0).view(shape),
        )
