"""Replay of the first tokens alone: what a forged group shows before most of its prefill is computed.

Invented text differs from the seeded draws within a few tokens, and a prefill of the first few costs a fraction of one
of a whole completion. A token that is *impossible* here is so at the noise of the coarsest engine there is, so the full
replay would reject the group as well: nothing that the full replay passes fails here. The same test confirms a forgery:
the one completion up to its impossible token, replayed alone, so that neither a batch nor a machine's bad moment is
taken for a cheat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from p2prl.models.groups.group_work import Inspection
from p2prl.models.replay_statistics.judge import TokenScores, impossible_tokens
from p2prl.models.replay_statistics.noise import widest_scale
from p2prl.models.scorer_port import Scored, Scorer

PREFIX_TOKENS = 8
"""First tokens of each completion that are replayed before the rest. A fabricated token is the seeded draw with the
draw's own probability, so a group of 16 completions passes by chance with the 128th power of it."""

LEAST_SAVING = 4
"""Times the prefix that a group's completions are long, on average, from which it is worth a prefill of its own."""


@dataclass(frozen=True, slots=True)
class ImpossibleToken:
    """A token of a group that no honest engine samples."""

    completion: int
    place: int


def is_worthwhile(inspection: Inspection) -> bool:
    """Whether the first tokens are so few of a group's that they are replayed first."""
    lengths = [len(ids) for ids in inspection.token_ids]
    return sum(lengths) >= LEAST_SAVING * PREFIX_TOKENS * len(lengths)


def first_impossible(scorer: Scorer, work: Sequence[Inspection]) -> list[ImpossibleToken | None]:
    """For each group, an impossible token among the first of its completions, replayed in one batched prefill."""
    requests = [request for inspection in work for request in inspection.assignment.requests]
    prefixes = [ids[:PREFIX_TOKENS] for inspection in work for ids in inspection.token_ids]
    scored = iter(scorer.replay(requests, prefixes))
    return [impossible_token(scorer, inspection, [next(scored) for _ in inspection.token_ids]) for inspection in work]


def impossible_token(scorer: Scorer, inspection: Inspection, rows: Sequence[Scored]) -> ImpossibleToken | None:
    """The first impossible token of a group in its replayed rows, which may be cut short."""
    scale, temperature = widest_scale(scorer.layers), inspection.assignment.requests[0].temperature
    group_tokens = sum(len(ids) for ids in inspection.token_ids)
    for number, row in enumerate(rows):
        for place in impossible_tokens(_scores(row), scale, temperature, group_tokens=group_tokens):
            if not inspection.sampled or inspection.sampled[number][place]:
                return ImpossibleToken(number, place)
    return None


def confirms(scorer: Scorer, inspection: Inspection, token: ImpossibleToken) -> bool:
    """Whether a token is impossible in a replay of its completion alone, up to it."""
    request = inspection.assignment.requests[token.completion]
    ids = inspection.token_ids[token.completion][: token.place + 1]
    (row,) = scorer.replay([request], [ids])
    group_tokens = sum(len(each) for each in inspection.token_ids)
    found = impossible_tokens(_scores(row), widest_scale(scorer.layers), request.temperature, group_tokens=group_tokens)
    return token.place in found


def _scores(row: Scored) -> TokenScores:
    margins, logprobs, best, sizes = (
        np.asarray(values, dtype=np.float64) for values in (row.margins, row.logprobs, row.best_logprobs, row.sizes)
    )
    return TokenScores(margins=margins, logprobs=logprobs, best_logprobs=best, sizes=sizes, claimed=logprobs)
