"""Settings of run.toml that follow from the size of the model: learning rate, device and threads. Pure."""

from __future__ import annotations

import math
import re

import numpy as np

_ANCHORS = ((59_000, 2.5e-4), (5_000_000, 2e-4), (1_000_000_000, 1e-6))
"""Parameters and a learning rate for them. The first two are the project's own measurements: the chain4 model
(docs/benchmarks) and the small language model of the presets, which at 5e-4 settles on wrong answers early. The last is
the default of TRL's GRPOConfig and of verl's PPO and GRPO examples, for models of .5 to 8 billion parameters."""

_ADAPTER_FACTOR = 10.0
"""Adapters learn best at about ten times the rate of all weights, whatever their rank (Schulman et al., "LoRA Without
Regret", 2025, which scales them as this project does)."""

_ANY_DEVICE_PARAMETERS = 1_000_000
"""Below, an update is faster on one core than across a bus to a GPU."""


def learning_rate_for(parameters: int) -> float:
    """A peak learning rate of AdamW for reinforcement learning on all weights of a model of this size.

    Straight lines between the anchors above, both axes logarithmic, to two digits; level outside of them. What lies
    between was interpolated, not measured: it is where a search should begin.
    """
    sizes, rates = zip(*_ANCHORS, strict=True)
    place = np.interp(math.log(max(1, parameters)), np.log(sizes), np.log(rates))
    return float(f"{math.exp(place):.1e}")


def fitted_settings(text: str, *, parameters: int, adapters: bool = False) -> str:
    """A preset's run.toml for a model that is not the preset's own. What cannot be found in the text stays as it is."""
    rate = learning_rate_for(parameters) * (_ADAPTER_FACTOR if adapters else 1.0)
    text = _set(text, "learning_rate", f"{rate:.2g}", f"for {parameters:,} parameters (docs/researchers.md)")
    if parameters >= _ANY_DEVICE_PARAMETERS:
        text = _set(text, "device", '"auto"', "the first of CUDA, MPS and CPU that is there")
        text = _set(text, "threads", "0", "all cores")
    return text


def _set(text: str, key: str, value: str, why: str) -> str:
    """Replace the first line that sets `key`, its comment included."""
    return re.sub(rf"^{key} *=.*$", lambda _: f"{key} = {value}".ljust(26) + f"# {why}", text, count=1, flags=re.M)
