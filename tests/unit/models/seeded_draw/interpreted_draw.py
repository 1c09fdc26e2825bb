"""Rows drawn by the card's kernels in Triton's interpreter and by the definition: how many differ, by kind, as JSON.

A program of its own, since Triton reads TRITON_INTERPRET when torch imports it. The argument is how often to draw each
kind: 8 are 2,200 rows and take two minutes.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter

from p2prl.models.seeded_draw import card_draw, every_token
from p2prl.models.seeded_draw.gumbel_noise import gumbel, row_states
from p2prl.models.seeded_draw.rows import RowSettings

INF, NAN = float("inf"), float("nan")


def cases(seed: int) -> Iterator[tuple[str, Tensor, Tensor, Tensor, Tensor]]:
    """Kind, logits, temperatures, seeds and positions; 287 rows."""
    generator = torch.Generator().manual_seed(seed)

    def rows(kind: str, logits: Tensor, *, temperature: float = 0.0) -> tuple[str, Tensor, Tensor, Tensor, Tensor]:
        count = len(logits)
        temperatures = torch.rand(count, generator=generator) * 1.5 + 0.2
        if temperature:
            temperatures[:] = temperature
        seeds = torch.randint(0, (1 << 63) - 1, (count,), generator=generator)
        return kind, logits, temperatures, seeds, torch.randint(0, 40_000, (count,), generator=generator)

    def normal(count: int, vocabulary: int) -> Tensor:
        return torch.randn(count, vocabulary, generator=generator)

    for spread in (3.0, 6.0, 18.0):
        yield rows("spread", normal(50, 1000) * spread)
    for vocabulary in (1, 2, 17, 1023, 1024, 1025, 2500):
        yield rows("uneven vocabulary", normal(2, vocabulary) * 3)
    for dtype in (torch.bfloat16, torch.float16):
        yield rows("16 bits", (normal(15, 900) * 4).to(dtype))
    for level in (0.0, 1e8, -3e37, 3e38):
        yield rows("ties", torch.full((7, 900), level), temperature=1.0)
    yield rows("ties", torch.full((2, 4000), 1e8), temperature=1.0)
    infinite = normal(15, 900) * 5
    infinite[torch.rand(infinite.shape, generator=generator) < 0.99] = -INF
    infinite[:5] = -INF
    infinite[5, [7, 31]], infinite[6], infinite[7, ::2] = INF, INF, 3.4e38
    yield rows("infinite", infinite)
    broken = normal(8, 1100)
    broken[torch.arange(8), torch.arange(8) * 130] = NAN
    broken[::3, 1050], broken[1::3, 3], broken[2::3] = -NAN, INF, broken[2::3].where(broken[2::3].isnan(), -INF)
    yield rows("not a number", broken)
    kind, logits, temperatures, seeds, positions = rows("near ties", normal(15, 1300), temperature=1.0)
    noise = gumbel(seeds, positions[:, None], 1300)[:, 0]
    units = torch.randint(-2, 3, logits.shape, generator=generator)
    lifted = ((13.0 - noise).view(torch.int32) + units).view(torch.float32)
    yield kind, lifted, temperatures, seeds, positions
    rare = torch.zeros(7, 1300)  # the best token has the lowest noise
    rare[torch.arange(7), noise[:7].argmin(dim=-1)] = 40.0
    yield "near ties", rare, temperatures[:7], seeds[:7], positions[:7]
    yield rows("strided", normal(2, 1400)[:, ::2])
    yield rows("strided", normal(8, 700)[::2])
    kind, logits, temperatures, seeds, positions = rows("strided settings", normal(6, 300) * 3)
    temperature, noise_seed, position = (
        torch.stack([part, part], dim=1)[:, 0] for part in (temperatures, seeds, positions)
    )
    yield kind, logits, temperature, noise_seed, position
    yield kind, logits, temperatures[:1].expand(6), seeds[:1].expand(6), positions[:1].expand(6)


def main() -> None:
    """Draw, compare and print."""
    # One change of the language instead of one for each call of a device function: ten times faster.
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda fn: interpreter._LangPatchScope()
    found: dict[str, dict[str, float]] = {}
    drawn = (case for seed in range(int(sys.argv[1])) for case in cases(seed))
    for kind, logits, temperatures, seeds, positions in drawn:
        tokens, logprobs = card_draw.draw_on_card(logits, temperatures, seeds, positions)
        settings = RowSettings(temperatures.numpy(), row_states(seeds.numpy(), positions.numpy()))
        wanted = every_token.scan(logits.float().numpy(), settings, with_sums=True).tokens
        scaled = logits.float() / temperatures[:, None]
        picked = torch.log_softmax(scaled.double(), dim=-1)[torch.arange(len(logits)), torch.from_numpy(wanted)]
        entry = found.setdefault(kind, {"rows": 0, "different": 0, "worst_logprob": 0.0, "finite_differs": 0})
        entry["rows"] += len(logits)
        entry["different"] += int((tokens.numpy() != wanted).sum())
        finite = picked.isfinite()
        entry["finite_differs"] += int((logprobs.isfinite() != finite).sum())
        errors = (logprobs.double() - picked).abs() / picked.abs().clamp(min=1.0)
        entry["worst_logprob"] = max([entry["worst_logprob"], *errors[finite].tolist()])
    found["gate"] = {"right": float(card_draw.is_right_on(torch.device("cpu")))}
    card_draw._SERIES_BELOW.value = 0.0  # as where the arithmetic of a card were less accurate
    found["gate"]["right_without_series"] = float(card_draw.is_right_on.__wrapped__(torch.device("cpu")))
    assert all(map(math.isfinite, (value for entry in found.values() for value in entry.values())))
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        main()
