"""What workers show: who they are and what leaves the machine, and no figure before there is one."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from p2prl.cli.worker_views import (
    SmoothRate,
    audit_line,
    progress_line,
    progress_panel,
    validator_introduction,
    volunteer_introduction,
)
from p2prl.client.service import Progress
from p2prl.config.requirements import Requirements
from p2prl.protocol.identity import Identity
from p2prl.protocol.manifests import RunManifest
from p2prl.scoreboard.display_names import display_name
from p2prl.testing.sample_ledgers import manifest
from p2prl.validator.service import Audit

IDENTITY = Identity.generate(bytes(range(16)))
NEEDS = Requirements(files_bytes=20_000, weights_bytes=1_500_000, disk_bytes=7_000_000, memory_bytes=3_100_000_000)
IDLE = Progress("connecting", -1, -1, {}, {}, {}, 0, None, 0.0, (-1, 0, 0), 0, 0, 0, 0, 0)
BUSY = Progress(
    "sampling",
    7,
    8,
    {"learner": 1, "volunteer": 2},
    {"verified": 3, "generated": 1},
    {},
    9,
    0.0,
    1234.0,
    (8, 2, 4),
    1,
    3,
    0,
    0,
    0,
)


def panel(progress: Progress, rate: float) -> str:
    output = io.StringIO()
    Console(file=output, width=80).print(progress_panel("chain", IDENTITY, progress, rate))
    return output.getvalue()


def test_nothing_is_measured_before_there_is_anything() -> None:
    for text in (progress_line(IDLE, 0.0), panel(IDLE, 0.0), audit_line(Audit(0, 0, 0, 0, 0, -1))):
        assert "v-1" not in text
        assert "0.00" not in text
        assert "0 tok/s" not in text
        assert "no weights yet" in text


def test_what_was_measured_is_shown() -> None:
    line = progress_line(BUSY, 1234.4)
    assert line.startswith("v7 (v8 2/4 chunks)  sampling  verified 3  waiting 1  rejected 0  reward 0.00  1,234 tok/s")
    shown = panel(BUSY, 1234.4)
    assert "v7, v8 is out   1,234 tok/s" in shown
    assert "75% from volunteers" in shown
    assert "1 learner, 2 volunteers" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_both_roles_say_who_they_are_and_how_to_keep_it() -> None:
    run: RunManifest = manifest()
    volunteer = "\n".join(volunteer_introduction(run, NEEDS, IDENTITY, "seat-2", "cpu"))
    validator = "\n".join(validator_introduction(run, NEEDS, IDENTITY, "validator-1", "cpu", 0.25))
    for text, seat in ((volunteer, "seat-2"), (validator, "validator-1")):
        assert run.goal in text
        assert run.licence in text
        assert run.content_policy in text
        assert all(cost in text for cost in ("1.5 MB", "7.0 MB of disk", "3.1 GB of memory"))
        assert display_name(IDENTITY.public_key) in text
        assert IDENTITY.peer_id in text
        assert f"p2prl key backup --seat {seat}" in text
    assert "sample answers" in volunteer
    assert "generated tokens" in volunteer
    assert "replay 25%" in validator
    assert "signed verdicts" in validator
    assert "generated tokens" not in validator


def test_a_shown_rate_is_calm_and_follows() -> None:
    rate = SmoothRate()
    assert rate.update(0.0, 0.0) == 0.0
    assert rate.update(100.0, 5.0) == 100.0
    assert 100.0 < rate.update(1000.0, 5.25) < 120.0
    shown = [rate.update(1000.0, 5.25 + second) for second in range(1, 121)]
    assert shown == sorted(shown)
    assert shown[-1] == pytest.approx(1000.0, rel=1e-3)
