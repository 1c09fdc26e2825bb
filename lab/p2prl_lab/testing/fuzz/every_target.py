"""Every decoder that a stranger's bytes reach, as one list."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from p2prl.models.small_models.tiny_models import tiny_model
from p2prl_lab.testing.fuzz.file_targets import file_targets
from p2prl_lab.testing.fuzz.group_targets import group_targets
from p2prl_lab.testing.fuzz.index_targets import index_targets
from p2prl_lab.testing.fuzz.target import Target
from p2prl_lab.testing.fuzz.text_targets import text_targets
from p2prl_lab.testing.fuzz.vector_world import VectorWorld
from p2prl_lab.testing.fuzz.wire_targets import wire_targets


def every_target(vectors: Mapping[str, Any], folder: Path) -> list[Target]:
    """All targets. `vectors` are the wire's (`tests/vectors/wire.json`); `folder` takes files under test."""
    world, loaded = VectorWorld.of(vectors), tiny_model("chain4", seed=0)
    return [
        *wire_targets(world),
        *text_targets(world),
        *group_targets(world, loaded),
        *file_targets(world, loaded, folder),
        *index_targets(),
    ]
