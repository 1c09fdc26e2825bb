"""JSON lines after kills and power failures: what is whole is read, the rest is named, and appending goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.clock import SystemClock
from p2prl.json_lines import read_json_lines, remove_unfinished_line
from p2prl.learner.training.metrics_log import MetricsLog

WHOLE = [{"step": float(step), "reward": step / 8} for step in range(1, 4)]


def lines(*documents: Any) -> bytes:
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


def test_a_missing_file_has_nothing(tmp_path: Path) -> None:
    found = read_json_lines(tmp_path / "none")
    assert (found.objects, found.unreadable, found.notice(tmp_path)) == ([], [], "")
    remove_unfinished_line(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@given(cut=st.integers(0, len(lines(*WHOLE))))
def test_a_file_cut_anywhere_gives_its_whole_lines(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("cut") / "metrics.jsonl"
    data = lines(*WHOLE)[:cut]
    path.write_bytes(data)
    whole = data.count(b"\n")
    assert read_json_lines(path).objects == WHOLE[:whole]
    assert not read_json_lines(path).unreadable
    remove_unfinished_line(path)
    assert path.read_bytes() == lines(*WHOLE[:whole])


@pytest.mark.parametrize(
    "damage", [b"\x00" * 40, b"{", b"[1]", b'"text"', b"", b"[" * 100_000, b'{"step": 2}', b"\xff"]
)
def test_damaged_lines_are_skipped_and_named(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(lines(WHOLE[0]) + damage + b"\n" + lines(WHOLE[2]))
    found = read_json_lines(path, required={"step": float})
    assert found.objects == [WHOLE[0], WHOLE[2]]
    assert found.unreadable == [2]
    assert "1 unreadable line(s)" in found.notice(path)
    assert ": 2." in found.notice(path)


def test_a_notice_names_eight_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"{\n" * 9)
    assert "1, 2, 3, 4, 5, 6, 7, 8 …" in read_json_lines(path).notice(path)
    path.write_bytes(b"{\n" * 8)
    assert "7, 8." in read_json_lines(path).notice(path)


def test_metrics_go_on_behind_damage(tmp_path: Path) -> None:
    path, told = tmp_path / "metrics.jsonl", list[str]()
    path.write_bytes(lines(*WHOLE) + b"\x00\x00\n" + b'{"step": 4.0, "rew')
    log = MetricsLog(path, SystemClock(), on_metrics=lambda _: None, on_notice=told.append)
    assert log.logged_step == 3
    assert ["unreadable" in each for each in told] == [True]
    for step in (3, 4):
        log.add(step, {"step": float(step)}, [])
    assert [document["step"] for document in read_json_lines(path).objects] == [1.0, 2.0, 3.0, 4.0]
