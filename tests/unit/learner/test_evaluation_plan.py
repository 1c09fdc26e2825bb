"""Plan of evaluations: which version is due, slices of about two seconds, and a share of the time."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from p2prl.errors import ConfigError
from p2prl.learner.evaluation.evaluation_plan import EvaluationConfig, SliceSize, TimeShare, version_due
from p2prl.learner.evaluation.results_file import ResultsFile


@pytest.mark.parametrize(
    ("newest", "evaluated", "every", "finished", "due"),
    [
        (-1, (), 5, False, None),
        (0, (), 5, False, 0),
        (3, (), 5, False, 3),  # a run that is resumed with evaluations turned on
        (4, (0,), 5, False, None),
        (5, (0,), 5, False, 5),
        (7, (0,), 5, False, 7),  # version 6 was published while another was measured
        (11, (0, 7), 5, False, None),
        (12, (0, 7), 5, False, 12),
        (11, (0, 7), 5, True, 11),
        (11, (0, 11), 5, True, None),
        (9, (), 0, True, None),
        (3, (3,), 5, True, None),
    ],
)
def test_version_due(newest: int, evaluated: tuple[int, ...], every: int, finished: bool, due: int | None) -> None:
    assert version_due(newest, evaluated, every=every, finished=finished) == due


@pytest.mark.parametrize(
    ("newest", "evaluated", "finished", "due"),
    [
        (0, (), False, 0),
        (4, (0,), False, None),
        (12, (0,), False, 5),
        (12, (0, 5), False, 10),
        (12, (0, 5, 10), True, 12),
    ],
)
def test_no_version_is_skipped_where_each_is_measured(
    newest: int, evaluated: tuple[int, ...], finished: bool, due: int | None
) -> None:
    assert version_due(newest, evaluated, every=5, finished=finished, always=True) == due


def test_slices_grow_to_two_seconds_and_shrink_at_once() -> None:
    size, per_prompt, sizes = SliceSize(), 0.1, []
    for _ in range(8):
        sizes.append(size.prompts)
        size.took(size.prompts, per_prompt * size.prompts)
    assert sizes == [1, 2, 4, 8, 16, 20, 20, 20]
    size.took(20, 20.0)
    assert size.prompts == 2
    size.took(2, 100.0)
    assert size.prompts == 1
    for _ in range(20):
        size.took(size.prompts, 0.0)
    assert size.prompts == 64


def test_time_share_is_kept() -> None:
    share, now, spent = TimeShare(0.05, now=100.0), 100.0, 0.0
    assert share.allows(now)
    for _ in range(10_000):
        now += 0.1
        if share.allows(now):
            share.spend(2.0)
            spent += 2.0
            now += 2.0
    assert spent <= 0.05 * (now - 100.0) + 2.0
    assert spent >= 0.05 * (now - 100.0) - 2.0


def test_results_are_kept_once_a_version(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.jsonl"
    results = ResultsFile(path, pytest.fail)
    assert results.newest is None
    results.add({"version": 0, "tasks": {}})
    results.add({"version": 10, "tasks": {}})
    path.write_bytes(path.read_bytes() + b'{"version": 20, "ta')  # killed while writing
    again = ResultsFile(path, pytest.fail)
    assert again.versions == {0, 10}
    assert again.newest == {"version": 10, "tasks": {}}
    again.add({"version": 20, "tasks": {}})
    assert [json.loads(line)["version"] for line in path.read_text().splitlines()] == [0, 10, 20]


@pytest.mark.parametrize(
    "damaged",
    [b"\0" * 40, b'{"version": 5, "ta\0\0\0', b"\xff\xfe", b"", b"5", b"[]", b'{"tasks": {}}',
     b'{"version": "5", "tasks": {}}',     b'{"version": 5}', b"[" * 100_000],
    ids=range(10),
)  # fmt: skip
def test_unreadable_lines_are_skipped_and_told(tmp_path: Path, damaged: bytes) -> None:
    path, notices = tmp_path / "evaluations.jsonl", list[str]()
    path.write_bytes(b'{"version": 0, "tasks": {}}\n' + damaged + b'\n{"version": 10, "tasks": {}}\n' + damaged + b"\n")
    results = ResultsFile(path, notices.append)
    assert results.versions == {0, 10}
    (notice,) = notices
    assert "2 unreadable line(s)" in notice
    assert notice.partition("leaves them: ")[2].startswith("2, 4.")
    results.add({"version": 20, "tasks": {}})
    assert ResultsFile(path, notices.append).versions == {0, 10, 20}


def test_a_result_is_on_disk_when_it_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "evaluations.jsonl", list[bytes]()
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(Path(f"/proc/self/fd/{number}").read_bytes()))
    ResultsFile(path, pytest.fail).add({"version": 0, "tasks": {}})
    assert synced == [path.read_bytes()] == [b'{"tasks": {}, "version": 0}\n']


@pytest.mark.parametrize(
    "wrong", [{"every": -1}, {"prompts": 0}, {"samples": -1}, {"samples": 2000}, {"time_share": 0.0}, {"time_share": 2}]
)
def test_settings_outside_their_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        EvaluationConfig(**wrong)  # type: ignore[arg-type]
