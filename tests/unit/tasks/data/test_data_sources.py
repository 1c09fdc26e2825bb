"""Readers: every fault is one sentence with file and line; parquet and saved data sets give the rows of JSON lines."""

from __future__ import annotations

import datetime
import decimal
import gzip
import importlib.util
import json
import os
import shlex
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from p2prl.errors import ConfigError
from p2prl.tasks.data.data_source import open_source
from p2prl.tasks.data.text_files import MAX_ROW_BYTES
from tests.unit.tasks.data.packing_rig import pack, packed_bytes, sums, write_rows

needs_arrow = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="the extra `data` is missing")


def read(path: Path) -> list[dict[str, Any]]:
    return list(open_source(path).rows())


def test_a_missing_library_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match="pyarrow") as caught:
        open_source(tmp_path / "a.parquet")
    assert "pip install -c constraints.txt '.[data]'" in caught.value.remedy


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\n\n\n"])
def test_lines_are_rows(tmp_path: Path, ends: str) -> None:
    rows = sums(3)
    text = "\ufeff" + "\n".join(json.dumps(row) for row in rows) + ends
    (tmp_path / "a.jsonl").write_bytes(text.encode())
    assert read(tmp_path / "a.jsonl") == rows


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"prompt": "caf\xe9"}', "byte 16 of the line is not UTF-8"),
        (b'{"prompt": }', "not JSON: expecting value at column 12"),
        (b'{"prompt": ', "not JSON: expecting value at column 12"),
        (b'{"prompt": "a\x00b"}', "not JSON: invalid control character at column 14"),
        (b"7", "not a JSON object"),
        (b'{"prompt": "a", "x": NaN}', "NaN is no JSON number"),
        (b'{"prompt": "a", "x": -Infinity}', "-Infinity is no JSON number"),
        (b'{"prompt": "a", "answer": "1", "answer": "2"}', '"answer" stands twice in one object'),
        (b'{"prompt": "a", "meta": {"x": 1, "x": 1}}', '"x" stands twice in one object'),
        (b'{"prompt": ' + b"[" * 100_000, "nested too deep"),
        (b'{"prompt": "' + b"a" * MAX_ROW_BYTES + b'"}', "more than 8,388,608 bytes"),
        (b"\n", "the line is empty"),
        (b'{"prompt": "a", "x": ' + b"9" * 4301 + b"}", "a number has more than 4,300 digits"),
    ],
)
def test_a_faulty_line_is_named(tmp_path: Path, line: bytes, said: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n{"prompt": "b"}\n' + line + b'\n{"prompt": "c"}\n')
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert f"{path}, line 3: " in str(caught.value)
    assert said in str(caught.value)
    assert caught.value.remedy


def test_the_longest_line_is_read(tmp_path: Path) -> None:
    line = b'{"prompt": "' + b"a" * (MAX_ROW_BYTES - 15) + b'"}\n'
    assert len(line) == MAX_ROW_BYTES
    (tmp_path / "a.jsonl").write_bytes(line)
    assert len(read(tmp_path / "a.jsonl")[0]["prompt"]) == MAX_ROW_BYTES - 15
    (tmp_path / "a.jsonl").write_bytes(b" " + line)
    with pytest.raises(ConfigError, match="more than 8,388,608 bytes"):
        read(tmp_path / "a.jsonl")


def test_the_share_done_grows_to_all(tmp_path: Path) -> None:
    source = open_source(write_rows(tmp_path / "a.jsonl", sums(50)))
    shares = [source.share_done for _ in source.rows()]
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(1 / 50, rel=0.2)
    assert source.share_done == 1.0


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b' [{"prompt": "a"}]', "one JSON array"),
        (gzip.compress(b" \n", mtime=0), "is empty"),
        (b"\x28\xb5\x2f\xfd more", "compressed with zstd"),
    ],
)
def test_other_files_are_refused_with_a_remedy(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(data)
    with pytest.raises(ConfigError, match=said) as caught:
        open_source(tmp_path / "a.jsonl")
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["rows.jsonl", "my rows.json"])
def test_converting_an_array_as_told_keeps_the_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("[]")
    with pytest.raises(ConfigError) as caught:
        open_source(tmp_path / name)
    *program, source, arrow, target = shlex.split(caught.value.remedy.removeprefix("Convert it: "))
    assert (program, source, arrow) == (["jq", "-c", ".[]"], str(tmp_path / name), ">")
    assert target != name  # a shell empties the target before jq reads the source


def test_a_missing_file_is_named_with_one_like_it(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("{}")
    with pytest.raises(ConfigError, match=r"no file .*tran\.jsonl") as caught:
        open_source(tmp_path / "tran.jsonl")
    assert str(tmp_path / "train.jsonl") in caught.value.remedy


def test_a_file_that_is_no_data_is_not_named_for_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_text("")
    with pytest.raises(ConfigError) as caught:
        open_source(tmp_path / "row.jsonl")
    assert caught.value.remedy == "Check the path."


def test_a_link_to_nothing_and_a_pipe_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "gone.jsonl")
    with pytest.raises(ConfigError, match=r"link\.jsonl is a link to a file that is not there") as caught:
        open_source(tmp_path / "link.jsonl")
    assert "Did you mean" not in caught.value.remedy
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=r"pipe is a pipe or a device, and rows are read twice") as caught:
        open_source(tmp_path / "pipe")
    assert "Save the rows to a file" in caught.value.remedy


@needs_arrow
def test_a_directory_that_holds_no_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no state\.json"):
        open_source(tmp_path)


@needs_arrow
@pytest.mark.extra
def test_all_formats_pack_to_the_same_bytes(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"extra": {"index": n, "tags": ["x", None]}, **row} for n, row in enumerate(sums(600))]
    table = arrow.Table.from_pylist(rows)
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    save_data_set(tmp_path / "saved", table)
    write_rows(tmp_path / "a.jsonl", rows)
    packed = []
    for name in ("a.jsonl", "a.parquet", "saved"):
        pack(tmp_path / f"{name}-packed", tmp_path / name)
        packed.append(packed_bytes(tmp_path / f"{name}-packed"))
    assert packed[0] == packed[1] == packed[2]
    source = open_source(tmp_path / "saved")
    assert len(list(source.rows())) == 600
    assert source.share_done == pytest.approx(1.0, abs=0.01)


def save_data_set(path: Path, table: Any) -> None:
    """A directory as `Dataset.save_to_disk` writes it, in two files."""
    arrow = pytest.importorskip("pyarrow")
    path.mkdir()
    half = table.num_rows // 2
    names = [f"data-0000{n}-of-00002.arrow" for n in range(2)]
    for name, part in zip(names, (table.slice(0, half), table.slice(half)), strict=True):
        with arrow.OSFile(str(path / name), "wb") as file, arrow.ipc.new_stream(file, part.schema) as writer:
            writer.write_table(part, max_chunksize=100)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))


@needs_arrow
@pytest.mark.extra
def test_faults_of_parquet_files_name_the_row(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"prompt": ["a", "b"], "image": [b"x", b"y"]}), path)
    with pytest.raises(ConfigError, match=r"row 0 \(from 0\): the column 'image' holds bytes"):
        read(path)
    damaged = arrow.array([b"ok", b"caf\xe9"], type=arrow.binary()).view(arrow.string())
    parquet.write_table(arrow.table({"prompt": damaged}), path)
    with pytest.raises(ConfigError, match=r"row 1 \(from 0\): a text is not UTF-8"):
        read(path)
    whole = path.read_bytes()
    for damage in (whole[:-20], whole[:4] + b"\xff" * 20 + whole[24:]):
        path.write_bytes(damage)
        with pytest.raises(ConfigError, match="is damaged") as caught:
            read(path)
        assert caught.value.remedy


@needs_arrow
@pytest.mark.extra
def test_a_parquet_file_without_rows_is_refused(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"prompt": arrow.array([], type=arrow.string())}), path)
    with pytest.raises(ConfigError, match=r"a\.parquet, row 0 \(from 0\): there is no row"):
        pack(tmp_path / "out", path)


@needs_arrow
@pytest.mark.extra
def test_dates_and_decimals_become_text(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"prompt": ["a"], "day": [datetime.date(2024, 2, 3)], "price": [decimal.Decimal("1.50")], "n": [None]}
    parquet.write_table(arrow.table(columns), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == [{"prompt": "a", "day": "2024-02-03", "price": "1.50", "n": None}]


@needs_arrow
def test_a_data_set_of_splits_names_them(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ConfigError, match="holds the splits train, test") as caught:
        open_source(tmp_path)
    assert str(tmp_path / "train") in caught.value.remedy


@needs_arrow
def test_a_saved_data_set_without_its_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "../../etc/passwd"}]}')
    with pytest.raises(ConfigError, match="passwd is missing") as caught:
        open_source(tmp_path)
    assert str(tmp_path / "passwd") in str(caught.value), "files lie in the directory itself"


@needs_arrow
@pytest.mark.extra
def test_few_rows_are_decoded_together(tmp_path: Path) -> None:
    """200 rows of 200 KB, in one row group and one record batch."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"prompt": ["p"] * 200, "notes": [f"{n}" + "z" * 200_000 for n in range(200)]})
    parquet.write_table(table, tmp_path / "a.parquet")
    save_data_set(tmp_path / "saved", table)
    for name in ("a.parquet", "saved"):
        tracemalloc.start()
        try:
            assert sum(1 for _ in open_source(tmp_path / name).rows()) == 200
            assert tracemalloc.get_traced_memory()[1] < 8_000_000
        finally:
            tracemalloc.stop()


def test_csv_gives_the_rows_of_json_lines(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('\ufeffquestion,answer\r\n"1+1, or ""so""?\n",2\r\n\r\nb,\r\n', newline="")
    rows = [{"question": '1+1, or "so"?\n', "answer": "2"}, {"question": "b", "answer": ""}]
    assert read(tmp_path / "a.csv") == rows
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(b"question\tanswer\n1,1\t2\n", mtime=0))
    assert read(tmp_path / "a.tsv.gz") == [{"question": "1,1", "answer": "2"}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a,b\n1,2\n3\n", "a.csv, row 2: 1 values for 2 columns"),
        (b"a,b\n1,2,3\n", "row 1: 3 values for 2 columns"),
        (b"a,a\n1,2\n", '"a" stands twice'),
        (b"a,\n1,2\n", "a column has no name"),
        (b'a,b\n"1,2\n', "row 1: not CSV"),
        (b"a,b\ncaf\xe9,2\n", "row 1: not UTF-8"),
    ],
)
def test_faults_of_csv_are_named(tmp_path: Path, text: bytes, said: str) -> None:
    (tmp_path / "a.csv").write_bytes(text)
    with pytest.raises(ConfigError, match=said):
        read(tmp_path / "a.csv")


def test_packed_lines_are_read_as_they_are_unpacked(tmp_path: Path) -> None:
    rows = sums(3000)
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text, mtime=0))
    source = open_source(tmp_path / "a.jsonl.gz")
    shares = []
    assert [row for row in source.rows() if shares.append(source.share_done) is None] == rows  # type: ignore[func-returns-value]
    assert shares == sorted(shares)
    assert source.share_done == 1.0


@pytest.mark.parametrize("cut", [1, 12, 40])
def test_damaged_packed_files_are_named(tmp_path: Path, cut: int) -> None:
    packed = gzip.compress(b'{"prompt": "a"}\n' * 100, mtime=0)
    (tmp_path / "a.jsonl.gz").write_bytes(packed[:-cut])
    with pytest.raises(ConfigError, match="is damaged"):
        read(tmp_path / "a.jsonl.gz")


def test_shards_are_one_after_the_other_by_their_numbers(tmp_path: Path) -> None:
    rows = sums(9)
    for number, part in ((10, rows[6:]), (2, rows[3:6]), (1, rows[:3])):
        write_rows(tmp_path / f"train-{number}.jsonl", part)
    (tmp_path / "test.jsonl").write_text("not read")
    source = open_source(tmp_path / "train-*.jsonl")
    assert list(source.rows()) == rows
    assert source.share_done == 1.0
    places = [source.place(number) for number in (0, 2, 3, 8)]
    assert places == [
        f"{tmp_path / name}, line {line}"
        for name, line in (("train-1.jsonl", 1), ("train-1.jsonl", 3), ("train-2.jsonl", 1), ("train-10.jsonl", 3))
    ]


def test_a_pattern_without_files_is_refused_and_a_file_called_so_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no file .*b\*\.jsonl"):
        open_source(tmp_path / "b*.jsonl")
    write_rows(tmp_path / "b*.jsonl", sums(1))
    write_rows(tmp_path / "bc.jsonl", sums(2))
    assert len(read(tmp_path / "b*.jsonl")) == 1
