"""Step rewards on tokens: from the characters where a scorer says that steps end to the tokens that end them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence

from p2prl.models.rewards.run_reward import JudgedSteps

Decode = Callable[[Sequence[int]], str]
"""Token ids to text."""


def token_rewards(token_ids: Sequence[int], text: str, steps: JudgedSteps, decode: Decode) -> tuple[float, ...]:
    """For each token, the reward of the step it ends; not a number at the others.

    `text` is that of the tokens, without the stop token that may be the last. The last token always has a number: it
    ends the completion, which is rewarded there. Steps that end within one token add up.
    """
    found = [math.nan] * len(token_ids)
    found[-1] = steps.rest
    for end, reward in zip(steps.ends, steps.rewards, strict=True):
        place = _token_of(end, token_ids, text, decode)
        found[place] = reward if math.isnan(found[place]) else found[place] + reward
    return tuple(found)


def _token_of(end: int, token_ids: Sequence[int], text: str, decode: Decode) -> int:
    """Index of the token that completes the text up to and including the character at `end`.

    By halving, since a decoder reads a prefix in linear time: a token may hold a part of a character, and what a token
    adds to a text depends on those before it.
    """
    start = text[: end + 1]
    prefixes = range(1, len(token_ids) + 1)
    place = bisect_left(prefixes, True, key=lambda length: decode(token_ids[:length])[: end + 1] == start)
    return min(place, len(token_ids) - 1)
