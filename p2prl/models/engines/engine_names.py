"""Choice of a sampling engine, as far as it is made without torch: on any device but a CUDA card."""

from __future__ import annotations

from dataclasses import dataclass

AUTO = "auto"
"""Stands for the fastest engine that is installed."""

DEFAULT_ENGINE = "transformers"
VLLM = "vllm"


@dataclass(frozen=True, slots=True)
class ChosenEngine:
    """An engine's name, and why it was chosen, in words for the machine's owner."""

    name: str
    reason: str
    fallback: str = ""
    """Engine to take when this one cannot run the model; empty when the owner asked for this one."""


def as_asked(name: str) -> ChosenEngine:
    """The engine that the owner named."""
    return ChosenEngine(name, "as asked with --engine")


OFF_CUDA = ChosenEngine(DEFAULT_ENGINE, "as the device is not CUDA")
"""What `AUTO` stands for on every other device."""
