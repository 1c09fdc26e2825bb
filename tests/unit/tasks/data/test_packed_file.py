"""Packed files: records come back as they were, without those left out, and damage is found."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p2prl.errors import IntegrityError
from p2prl.tasks.data.packed_data import PackedPrompts, prompt_record
from p2prl.tasks.data.packed_file import MAGIC, PackedFile, PackedWriter


def written(path: Path, records: list[bytes], without: list[int]) -> bytes:
    with PackedWriter(path) as writer:
        for record in records:
            writer.append(record)
        writer.finish(without=without)
    return path.read_bytes()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data(), st.lists(st.binary(max_size=20), max_size=12))
def test_records_come_back_without_those_left_out(tmp_path: Path, data: st.DataObject, records: list[bytes]) -> None:
    left_out = data.draw(st.sets(st.integers(0, len(records) - 1))) if records else set()
    kept = [record for number, record in enumerate(records) if number not in left_out]
    raw = written(tmp_path / "file", records, sorted(left_out))
    ends = [sum(map(len, kept[:n])) for n in range(len(kept) + 1)]
    numbers = [len(kept), *ends]
    assert raw == MAGIC + b"".join(n.to_bytes(8, "little") for n in numbers) + b"".join(kept)
    file = PackedFile(tmp_path / "file")
    assert [file.record(number) for number in range(len(file))] == kept
    assert file.longest == max(map(len, kept), default=0)
    with pytest.raises(IndexError):
        file.record(len(kept))


def test_the_size_is_known_before_the_end(tmp_path: Path) -> None:
    with PackedWriter(tmp_path / "file") as writer:
        for record in (b"abc", b"", b"d" * 100):
            writer.append(record)
        size = writer.size_bytes
        writer.finish()
    assert size == (tmp_path / "file").stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_longest_prompt_is_known_in_tokens(tmp_path: Path) -> None:
    written(tmp_path / "file", [prompt_record([1]), prompt_record([7, 8, 9])], [])
    assert PackedPrompts(tmp_path / "file").longest == 3


@pytest.mark.parametrize("raw", [b"", b"p2prlpk1", MAGIC + b"\x01" + bytes(15), b"x" * 40])
def test_other_files_are_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "file").write_bytes(raw)
    with pytest.raises(IntegrityError):
        PackedFile(tmp_path / "file")
