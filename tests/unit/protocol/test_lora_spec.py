"""Adapters as a run manifest states them: what is refused, and what just passes."""

from __future__ import annotations

import math

import msgspec
import pytest

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.identity import Identity
from p2prl.protocol.lora_spec import LoraSpec
from p2prl.sim.bare_manifest import run_manifest_of

ADAPTERS = LoraSpec(8, 16.0, ("down_proj", "q_proj"))
NAMES = tuple(f"layer_{n:02}" for n in range(limits.MAX_LORA_TARGETS + 1))


@pytest.mark.parametrize(
    "changes",
    [
        {"rank": 0},
        {"rank": limits.MAX_LORA_RANK + 1},
        {"alpha": 0.0},
        {"alpha": -1.0},
        {"alpha": math.nan},
        {"alpha": math.inf},
        {"alpha": 1.1e6},
        {"targets": ()},
        {"targets": NAMES},
        {"targets": ("q_proj", "down_proj")},
        {"targets": ("q_proj", "q_proj")},
        {"targets": ("",)},
        {"targets": ("q.proj",)},
        {"targets": ("qu\u00e9",)},
        {"targets": ("q" * (limits.MAX_NAME_CHARS + 1),)},
    ],
)
def test_impossible_adapters_are_refused_with_their_run(changes: dict[str, object]) -> None:
    run = msgspec.structs.replace(run_manifest_of(Identity(bytes(16))), lora=ADAPTERS)
    run.check()
    with pytest.raises(RemoteProtocolError, match=r"adapters|layers"):
        msgspec.structs.replace(run, lora=msgspec.structs.replace(ADAPTERS, **changes)).check()


@pytest.mark.parametrize(
    "changes",
    [
        {"rank": 1},
        {"rank": limits.MAX_LORA_RANK},
        {"alpha": 1e-9},
        {"alpha": 1e6},
        {"targets": NAMES[:-1]},
        {"targets": ("q",)},
        {"targets": ("q" * limits.MAX_NAME_CHARS,)},
    ],
)
def test_adapters_at_the_limits_pass(changes: dict[str, object]) -> None:
    msgspec.structs.replace(ADAPTERS, **changes).check()
