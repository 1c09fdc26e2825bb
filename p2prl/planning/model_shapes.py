"""Shapes of the models people post-train, by short names, for predictions of memory and speed."""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.errors import ConfigError
from p2prl.learner.training.memory_model import ModelShape


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownModel:
    """A model of a known shape. Sizes are those of its configuration on the hub."""

    title: str
    shape: ModelShape
    kv_width: int
    """Width of all key heads together."""

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return self.shape.parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token, in 16 bits."""
        return 2 * 2 * self.kv_width * self.shape.layers


def _known(title: str, kv_width: int, *sizes: int) -> KnownModel:
    parameters, vocabulary, hidden, intermediate, layers, query = sizes
    shape = ModelShape(
        parameters=parameters,
        vocabulary=vocabulary,
        hidden=hidden,
        intermediate=intermediate,
        layers=layers,
        query=query,
    )
    return KnownModel(title=title, shape=shape, kv_width=kv_width)


MODELS = {
    "0.5b": _known("Qwen2.5 0.5B", 128, 494_032_768, 151_936, 896, 4864, 24, 896),
    "1.5b": _known("Qwen2.5 1.5B", 256, 1_543_714_304, 151_936, 1536, 8960, 28, 1536),
    "3b": _known("Qwen2.5 3B", 256, 3_085_938_688, 151_936, 2048, 11_008, 36, 2048),
    "7b": _known("Qwen2.5 7B", 512, 7_615_616_512, 152_064, 3584, 18_944, 28, 3584),
    "8b": _known("Llama 3.1 8B", 1024, 8_030_261_248, 128_256, 4096, 14_336, 32, 4096),
    "14b": _known("Qwen2.5 14B", 1024, 14_770_033_664, 152_064, 5120, 13_824, 48, 5120),
    "32b": _known("Qwen2.5 32B", 1024, 32_763_876_352, 152_064, 5120, 27_648, 64, 5120),
}
"""By the name that `--model` takes."""


def model_named(name: str) -> KnownModel:
    """A known model. `ConfigError` names those there are."""
    found = MODELS.get(name.lower())
    if found is None:
        raise ConfigError(f"no model is known as {name!r}", remedy=f"Choose the nearest in size: {', '.join(MODELS)}.")
    return found
