"""The draw of the card's kernels against the definition, in Triton's interpreter: no card is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no build for this system")

Found = dict[str, dict[str, float]]


@pytest.fixture(scope="module")
def found() -> Found:
    """By kind of row: how many were drawn, and how many otherwise than defined."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.unit.models.seeded_draw.interpreted_draw", "1"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made: Found = json.loads(done.stdout)
    return made


KINDS = (
    *("spread", "uneven vocabulary", "16 bits", "ties", "infinite", "not a number", "near ties", "strided"),
    "strided settings",
)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_the_defined_ones_and_logprobs_those_of_the_model(kind: str, found: Found) -> None:
    made = found[kind]
    assert made["rows"] >= 6
    assert made["different"] == 0
    assert made["finite_differs"] == 0, "a log-prob tells whether a row's logits are numbers"
    assert made["worst_logprob"] < 2e-5


def test_kernels_are_used_only_where_their_noise_is_accurate(found: Found) -> None:
    assert found["gate"] == {"right": 1.0, "right_without_series": 0.0}
