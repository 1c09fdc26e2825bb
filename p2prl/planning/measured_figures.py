"""Measured figures that predictions are scaled from, each with the line of a page of docs/benchmarks that states it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from p2prl.learner.timing.capacity import BROADCAST_OVER_BOUND


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured figure, and the line of a page of docs/benchmarks that states it."""

    value: float
    page: str
    line: str


MEASURED = {
    "version_bytes": Figure(988_065_536, "publish.md", "| bytes of a version | 58,469,440 | 988,065,536 |"),
    "waits_s": Figure(0.090, "publish.md", "| training waits, median, s | .008 | .096 | .090 |"),
    "head_s": Figure(1.7, "publish.md", "| head, median, s | .51 | 2.4 | 1.7 |"),
    "beyond_copy_bytes": Figure(204e6, "publish.md", "| memory beyond the copy of the weights, MB | 243 | 228 | 204 |"),
    "switch_s": Figure(2.4, "publish.md", "| any version of the window in a file, longest, s | 3.0 | 3.5 | 2.4 |"),
    "keyframe_ratio": Figure(1.47, "publish.md", "1.47 times smaller than its"),
    "t95_over_bound": Figure(BROADCAST_OVER_BOUND, "spread.md", "| home | 512 | 0% | 1.06 |"),
    "copies": Figure(2.08, "spread.md", "| home | 512 | 0% | 1.06 | 1.09 |  | 2.08 |"),
    "decode_bytes_s": Figure(1058e6, "patches.md", "| adam lr 1e-06, bf16 | 1.04% | patch (numba) | 6.89 |"),
    "step_494m_s": Figure(1.2, "gpu.md", "| 494m | bf16, full | 16,384 | 27.2 | 37.6 | 1.2 |"),
    "step_1544m_s": Figure(3.1, "gpu.md", "| 1544m | bf16, full | 8,192 | 36.5 | 43.7 | 3.1 |"),
    "step_7615m_s": Figure(
        5.5, "gpu.md", "| 7615m | bf16_stochastic, 8bit | 4,096, checkpointing | 19.7 | 21.5 | 5.5 |"
    ),
    "decode_8_ms": Figure(3.1, "gpu.md", "| 8 | 40.7 | 16.6 | **3.1** | 5.3 | 2,576 |"),
    "decode_64_ms": Figure(3.4, "gpu.md", "| 64 | 41.3 | 17.3 | **3.4** | 5.1 | 18,961 |"),
    "decode_256_ms": Figure(4.5, "gpu.md", "| 256 | 67.4 | 28.6 | **4.5** | 6.4 | 56,894 |"),
}
"""Figures at one size: on two cores; of gpu.md on an H100 (training steps) and an H200 (decoding)."""

STEP_TOKENS = 32 * 1024
"""Tokens of each measured training step."""

PATCH_RATIOS = {1: 223.2, 2: 135.1, 8: 53.3, 32: 24.7, 128: 13.1}
"""Size of bf16 weights over that of a patch that leads over this many updates at a learning rate of 1e-6
(`python -m p2prl_lab.scale --spans`). The first is in patches.md too."""

OFFERED_SHARE, MOST_UPLOAD_MBIT = 0.8, 200.0
"""Share of its uplink that a peer offers, and the most of it."""


def patch_ratio(updates: int) -> float:
    """Size of the weights over that of a patch over some updates, between the measured ones on a line in logarithms."""
    known = sorted(PATCH_RATIOS)
    return _log_line(float(updates), [(float(each), PATCH_RATIOS[each]) for each in known])


def scaled_s(name: str, version_bytes: float) -> float:
    """A measured time, in proportion to the bytes of a version."""
    return MEASURED[name].value * version_bytes / MEASURED["version_bytes"].value


def _log_line(at: float, points: list[tuple[float, float]]) -> float:
    """The value at `at` on straight lines between points in logarithms; that of the nearest outside of them."""
    for (left, low), (right, high) in pairwise(points):
        if left <= at <= right:
            part = math.log(at / left) / math.log(right / left)
            return low * math.pow(high / low, part)
    return points[0][1] if at < points[0][0] else points[-1][1]


def training_share(parameters: float, peak_flops: float) -> float:
    """Share of `peak_flops` that training reached, in 6 operations a parameter and token, by the size of the model."""
    sizes = {494_032_768.0: "step_494m_s", 1_543_714_304.0: "step_1544m_s", 7_615_616_512.0: "step_7615m_s"}
    points = [(size, 6 * size * STEP_TOKENS / MEASURED[name].value / peak_flops) for size, name in sizes.items()]
    return _log_line(parameters, points)
