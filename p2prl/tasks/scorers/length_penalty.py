"""Length penalty: what a completion loses when it comes close to the longest one that is wanted."""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.errors import require
from p2prl.protocol import limits
from p2prl.tasks.score_bound import MAX_SCORE


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthPenalty:
    """Soft penalty of overlong completions (DAPO, arXiv 2503.14476, section 3.4), added to the weighted sum."""

    max_tokens: int
    """L_max: from here the penalty is −`weight`. Tokens of the completion, 2..32,768."""
    cache_tokens: int
    """L_cache: the penalty grows from 0 to its full size over this many tokens before `max_tokens`."""
    weight: float = 1.0
    """Size of the full penalty, above 0, at most 100."""

    def __post_init__(self) -> None:
        top = limits.MAX_COMPLETION_TOKENS
        require("length penalty's limit", self.max_tokens, 2 <= self.max_tokens <= top, f"within 2..{top} tokens")
        legal = 1 <= self.cache_tokens <= self.max_tokens
        require("length penalty's margin", self.cache_tokens, legal, "1 token or more, and at most its limit")
        require(
            "length penalty's weight", self.weight, 0 < self.weight <= MAX_SCORE, f"above 0 and up to {MAX_SCORE:g}"
        )

    def of(self, tokens: int) -> float:
        """The penalty for a completion's length, within −`weight`..0."""
        excess = tokens - (self.max_tokens - self.cache_tokens)
        return -self.weight * min(max(excess / self.cache_tokens, 0.0), 1.0)
