"""The plan of kills: every role is killed, none is forgotten."""

from __future__ import annotations

import itertools
import random
from collections import Counter

from p2prl_lab.testing.crash_run import dealt_roles


def test_fifty_kills_hit_every_role_equally_often() -> None:
    dealt = list(itertools.islice(dealt_roles(random.Random(4)), 50))
    counts = Counter(dealt)
    assert set(counts) == {"learner", "volunteer", "validator", "seeder"}
    assert set(counts.values()) == {12, 13}
    assert dealt != list(itertools.islice(dealt_roles(random.Random(5)), 50))
