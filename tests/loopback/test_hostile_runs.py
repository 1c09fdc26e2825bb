"""A hostile learner over real sockets: the real program refuses it, writes little and leaves nothing behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from p2prl.protocol.identity import Identity
from p2prl_lab.testing.hostile_runs import hostile_run
from p2prl_lab.testing.hostile_sockets import attack_over_sockets

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(1200)]

WEIGHTS = 2_000_000


@pytest.mark.parametrize(
    ("attack", "code", "words"),
    [
        ("oversized_weights", 10, "weights of 1200000000 bytes, and the run's model has 2000000"),
        ("huge_data", 3, "--disk-gb allows 200 MB"),
    ],
)
def test_a_hostile_run_is_refused_and_leaves_nothing(attack: str, code: int, words: str, tmp_path: Path) -> None:
    run = hostile_run(attack, Identity(os.urandom(16)), weight_bytes=WEIGHTS, now=time.time())
    outcome = attack_over_sockets(attack, run, "seed", tmp_path, ("--disk-gb", "0.2"))
    assert outcome.exit_code == code
    assert words in outcome.sentence
    assert outcome.written_bytes <= 1.05 * outcome.told_bytes
    assert outcome.most_held_bytes < WEIGHTS, "at most a sparse file"
    assert outcome.received_bytes == outcome.left_behind_bytes == 0
