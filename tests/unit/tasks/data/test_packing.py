"""Packing: canonical bytes, repeated and contradicting rows, lengths, held-out rows, overlaps, and bounded memory."""

from __future__ import annotations

import json
import random
import re
import tracemalloc
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p2prl.errors import ConfigError
from p2prl.tasks.data.data_plan import ROWS_FILE, DataPlan
from p2prl.tasks.data.held_out_rows import overlap_remedy, refuse_overlap
from p2prl.tasks.data.packed_data import MAX_ROW_BYTES, file_blob, row_record
from p2prl.tasks.data.packing import DataPacker
from p2prl.tasks.data.split_packer import PromptRoom
from tests.unit.tasks.data.packing_rig import (
    ROOMY,
    ByteEncoder,
    pack,
    packed_bytes,
    prompts_in,
    rows_in,
    sums,
    write_rows,
)


def test_rows_are_packed_as_scorers_and_samplers_need_them(tmp_path: Path) -> None:
    rows = [{"id": 1, **sums(1)[0]}, {"question": "Why?", "answer": "#### é", "id": None}]
    packed = pack(tmp_path / "out", write_rows(tmp_path / "a.jsonl", rows))
    assert (packed.rows, packed.held_out_rows, packed.longest) == (2, 0, len("<What is 0 + 0?>"))
    assert prompts_in(tmp_path / "out") == ["<What is 0 + 0?>", "<Why?>"]
    assert rows_in(tmp_path / "out") == [
        {"id": 1, "prompt": "What is 0 + 0?", "rendered": "<What is 0 + 0?>", "answer": "0+0\n#### 0"},
        {"id": None, "prompt": "Why?", "rendered": "<Why?>", "answer": "#### é"},
    ]
    assert "prompts from the column 'question', answers from 'answer'" in packed.notices[0]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 2**60) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    rows=st.lists(st.dictionaries(st.sampled_from(["x", "y", "z"]), JSON), min_size=1, max_size=6), seed=st.integers()
)
def test_the_order_of_columns_does_not_count(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("order")
    rows = [{**row, "prompt": f"p{n}", "answer": n} for n, row in enumerate(rows)]
    mixed = [dict(random.Random(seed + n).sample(list(row.items()), len(row))) for n, row in enumerate(rows)]
    for name, each in (("a", rows), ("b", mixed)):
        pack(folder / f"out-{name}", write_rows(folder / name, each))
    assert packed_bytes(folder / "out-a") == packed_bytes(folder / "out-b")
    for row, packed in zip(rows, rows_in(folder / "out-a"), strict=True):
        assert packed == {**row, "rendered": f"<{row['prompt']}>"}


def test_every_change_of_a_row_changes_the_name_of_the_file(tmp_path: Path) -> None:
    base = sums(20)
    variants = [base, base[::-1], base[:-1]]
    changes = ({"question": "Why?"}, {"answer": "#### 7"}, {"level": 3})
    variants += [[*base[:7], {**base[7], **change}, *base[8:]] for change in changes]
    names = set()
    for number, rows in enumerate(variants):
        out = tmp_path / f"out-{number}"
        pack(out, write_rows(tmp_path / "a.jsonl", rows))
        names.add(file_blob(out / ROWS_FILE).root)
    assert len(names) == len(variants)


def test_a_file_has_the_name_of_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(random.Random(1).randbytes(300_001))
    blob = file_blob(path)
    blob.check(max_bytes=1 << 20)
    assert blob.size_bytes == 300_001
    assert blob.total > 20


def test_repeated_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = sums(300)
    again = [*rows, rows[7], *sums(3, first=900), rows[280], rows[7]]
    packed = pack(tmp_path / "out", write_rows(tmp_path / "a.jsonl", again))
    pack(tmp_path / "plain", write_rows(tmp_path / "b.jsonl", [*rows, *sums(3, first=900)]))
    assert packed.rows == 303
    assert packed_bytes(tmp_path / "out") == packed_bytes(tmp_path / "plain")
    (notice,) = packed.notices[1:]
    assert notice.startswith("3 rows repeat earlier ones")
    assert notice.endswith(f"{tmp_path / 'a.jsonl'}, line 301, which repeats {tmp_path / 'a.jsonl'}, line 8.")


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), min_size=1, max_size=12))
def test_contradictions_are_refused_and_repetitions_are_not(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("drawn")
    path = write_rows(folder / "a.jsonl", [{"prompt": f"p{p}", "answer": a} for p, a in drawn])
    answers: dict[int, int] = {}
    clash = next((n for n, (p, a) in enumerate(drawn) if answers.setdefault(p, a) != a), None)
    if clash is None:
        assert pack(folder / "out", path).rows == len(answers)
        assert prompts_in(folder / "out") == [f"<p{p}>" for p in answers]
        return
    first = next(n for n, (p, _) in enumerate(drawn) if p == drawn[clash][0])
    with pytest.raises(ConfigError, match="another answer") as caught:
        pack(folder / "out", path)
    assert f"line {clash + 1}: the same prompt as {path}, line {first + 1}," in str(caught.value)


def test_prompts_that_do_not_fit_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    rows = [{"prompt": "x" * n} for n in (5, 18, 9, 14, 15)]
    path = write_rows(tmp_path / "a.jsonl", rows)
    room = PromptRoom(context=32, max_new_tokens=16)
    with pytest.raises(ConfigError) as caught:
        pack(tmp_path / "out", path, room=room)
    said = "line 2, and 1 more: the prompts have up to 20 tokens, which with 16 new ones exceed the model's 32"
    assert said in str(caught.value)
    assert caught.value.remedy == "Give --max-new-tokens 12, or leave such rows out with --drop-long."
    fitting = PromptRoom(context=32, max_new_tokens=12)
    assert pack(tmp_path / "fitting", path, room=fitting).rows == 5
    dropped = pack(tmp_path / "dropped", path, room=room, drop_long=True)
    assert (dropped.rows, dropped.longest) == (3, 16)
    assert "2 rows with longer prompts were left out" in " ".join(dropped.notices)
    with pytest.raises(ConfigError, match="no row is left to train on: 5 have prompts that are too long") as caught:
        pack(tmp_path / "none", path, room=PromptRoom(context=19, max_new_tokens=16), drop_long=True)
    assert caught.value.remedy == "Choose a smaller --max-new-tokens, or a model with a longer context."


def test_prompts_longer_than_any_run_has_are_refused(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"prompt": "x" * 8190}, {"prompt": "x" * 8191}])
    with pytest.raises(ConfigError, match=r"line 2: the prompt has 8,193 tokens, more than 8,192") as caught:
        pack(tmp_path / "out", path, room=PromptRoom(context=None, max_new_tokens=16))
    assert "--max-new-tokens" not in caught.value.remedy


def test_a_context_without_room_for_any_prompt_is_not_blamed_on_the_rows(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"prompt": "x" * 8}])
    with pytest.raises(ConfigError) as caught:
        pack(tmp_path / "out", path, room=PromptRoom(context=32, max_new_tokens=32))
    assert caught.value.remedy == "Give --max-new-tokens 22."


def test_answers_longer_than_the_context_are_refused(tmp_path: Path) -> None:
    room = PromptRoom(context=64, max_new_tokens=16)
    rows = [{"prompt": "a", "answer": "y" * 64}, {"prompt": "b", "answer": "é" * 33}]
    path = write_rows(tmp_path / "a.jsonl", rows)
    needed = frozenset({"answer"})
    with pytest.raises(ConfigError, match=r"line 2: the answer has 66 tokens, and a completion has room for 64"):
        pack(tmp_path / "out", path, room=room, needed_columns=needed)
    assert pack(tmp_path / "unread", path, room=room).rows == 2, "no scorer reads the answers"
    worked = [{"prompt": "a", "answer": "y" * 640 + mark} for mark in ("\n#### 7", r"\boxed{8}")]
    assert pack(tmp_path / "worked", write_rows(tmp_path / "b", worked[:1]), room=room, needed_columns=needed).rows == 1
    assert pack(tmp_path / "boxed", write_rows(tmp_path / "c", worked[1:]), room=room, needed_columns=needed).rows == 1


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "a", "x": 1e999}, "NaN or infinite"),
        ({"prompt": "a \ud800"}, "surrogate"),
        ({"prompt": "a", "x": ["\udfff"]}, "surrogate"),
    ],
)
def test_values_that_no_peer_could_read_are_refused(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    text = json.dumps([{"prompt": "ok"}, row]).replace("Infinity", "1e999")[1:-1].replace("}, {", "}\n{")
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        pack(tmp_path / "out", tmp_path / "a.jsonl")
    assert "line 2" in str(caught.value)


def test_a_tokenizer_that_does_not_know_the_prompts_is_refused(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"prompt": "a~b"}, {"prompt": "c"}])
    packed = pack(tmp_path / "out", path)
    assert "does not know 12.5% of the prompts' tokens" in " ".join(packed.notices)

    class Silent(ByteEncoder):
        def encode_all(self, texts: Any) -> list[list[int]]:
            return [[7] + [ord("~")] * len(text) if "c" in text else [1] for text in texts]

    with pytest.raises(ConfigError, match="line 2: the tokenizer knows nothing in the prompt"):
        packed_with(tmp_path / "silent", path, Silent())

    class Mute(ByteEncoder):
        def encode_all(self, texts: Any) -> list[list[int]]:
            return [[] for _ in texts]

    with pytest.raises(ConfigError, match="line 1: the tokenizer makes no tokens"):
        packed_with(tmp_path / "mute", path, Mute())


def packed_with(directory: Path, path: Path, encoder: ByteEncoder) -> None:
    directory.mkdir()
    with closing(DataPacker(DataPlan(task="a", path=path), directory, encoder, ROOMY)) as packer:
        packer.pack(lambda stage, share: None)
    assert list(directory.iterdir()) == []


def test_rows_the_scorers_cannot_use_are_refused(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", sums(300))
    (tmp_path / "out").mkdir()
    plan = DataPlan(task="a", path=path)
    packer = DataPacker(
        plan, tmp_path / "out", ByteEncoder(), ROOMY, problem=lambda row: "bad" if "#### 576" in row["answer"] else ""
    )
    with closing(packer), pytest.raises(ConfigError, match="line 289: bad"):
        packer.pack(lambda stage, share: None)


def test_held_out_rows_are_packed_apart(tmp_path: Path) -> None:
    train, held = write_rows(tmp_path / "a", sums(5)), write_rows(tmp_path / "b", sums(3, first=50))
    packed = pack(tmp_path / "out", train, held_out=held)
    assert (packed.rows, packed.held_out_rows) == (5, 3)
    assert prompts_in(tmp_path / "out", held_out=True) == [f"<What is {n} + {n}?>" for n in (50, 51, 52)]
    assert [row["answer"][-3:] for row in rows_in(tmp_path / "out", held_out=True)] == ["100", "102", "104"]


def test_prompts_in_both_files_are_refused_with_both_places(tmp_path: Path) -> None:
    held = [{"question": "what is  4 + 4? ", "answer": "8"}, *sums(2, first=40), sums(5)[2]]
    train, held_out = write_rows(tmp_path / "a", sums(5)), write_rows(tmp_path / "b", held)
    with pytest.raises(ConfigError) as caught:
        pack(tmp_path / "out", train, held_out=held_out)
    expected = f"{held_out}, line 1: this evaluation prompt is also trained on: {train}, line 5, and 1 more"
    assert expected in str(caught.value)


def test_an_evaluation_that_a_library_makes_needs_another_seed() -> None:
    assert "Remove it" in overlap_remedy(Path("held.jsonl"))
    assert "Remove it" in overlap_remedy(None)
    assert "larger by the number of rows" in overlap_remedy(Path("reasoning-gym:chain_sum?size=5&seed=2"))


def test_an_evaluation_is_compared_with_all_data_sets(tmp_path: Path) -> None:
    train, held_out = write_rows(tmp_path / "a", sums(5)), write_rows(tmp_path / "b", sums(1, first=50))
    other = write_rows(tmp_path / "c", sums(5, first=48))
    with ExitStack() as stack:
        packers = []
        for task, path, held in (("a", train, held_out), ("c", other, None)):
            (tmp_path / f"out-{task}").mkdir()
            plan = DataPlan(task=task, path=path, held_out=held)
            packer = stack.enter_context(closing(DataPacker(plan, tmp_path / f"out-{task}", ByteEncoder(), ROOMY)))
            packer.pack(lambda stage, share: None)
            packers.append(packer)
        refuse_overlap(packers[:1])
        with pytest.raises(ConfigError, match=r"b, line 1: .*c, line 3"):
            refuse_overlap(packers)


def test_a_split_depends_on_each_prompt_alone(tmp_path: Path) -> None:
    rows = sums(1000)
    first = pack(tmp_path / "one", write_rows(tmp_path / "a", rows), eval_split=0.1)
    assert 60 <= first.held_out_rows <= 140, "5 standard deviations around 100"
    assert first.rows + first.held_out_rows == 1000
    pack(tmp_path / "two", write_rows(tmp_path / "b", [*sums(400, first=5000), *rows[::-1]]), eval_split=0.1)
    held = [set(prompts_in(tmp_path / out, held_out=True)) for out in ("one", "two")]
    assert held[0] <= held[1]
    assert not held[1] & set(prompts_in(tmp_path / "one"))
    shouted = [{**row, "question": row["question"].upper()} for row in rows]
    pack(tmp_path / "three", write_rows(tmp_path / "c", [*rows, *shouted]), eval_split=0.1)
    both = Counter(prompt.lower() for prompt in prompts_in(tmp_path / "three", held_out=True))
    assert set(both.values()) == {2}, "prompts that ask the same are on the same side"


@pytest.mark.parametrize(("share", "said"), [(1e-9, "for evaluation"), (1 - 1e-9, "to train on")])
def test_a_split_without_rows_is_refused(tmp_path: Path, share: float, said: str) -> None:
    with pytest.raises(ConfigError, match=f"no row is left {said}"):
        pack(tmp_path / "out", write_rows(tmp_path / "a", sums(5)), eval_split=share)


def test_data_beyond_the_limit_is_refused_as_soon_as_it_is_reached(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    plan = DataPlan(task="a", path=write_rows(tmp_path / "a", sums(3000)))
    with closing(DataPacker(plan, tmp_path / "out", ByteEncoder(), ROOMY)) as packer:
        size = packer.pack(lambda stage, share: None)
    with (
        closing(DataPacker(plan, tmp_path / "out", ByteEncoder(), ROOMY)) as packer,
        pytest.raises(ConfigError, match="the data sets take more than") as caught,
    ):
        packer.pack(lambda stage, share: None, most_bytes=size // 2)
    (line,) = re.findall(r"line (\d+):", str(caught.value))
    assert 1500 <= int(line) <= 1500 + 2 * 256


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    shares: list[float] = []
    plan = DataPlan(task="a", path=write_rows(tmp_path / "a", sums(2600)))
    with closing(DataPacker(plan, tmp_path / "out", ByteEncoder(), ROOMY)) as packer:
        packer.pack(lambda stage, share: shares.append(share))
    assert shares == sorted(shares)
    assert len(shares) > 8
    assert shares[-1] > 0.95


def test_memory_grows_with_the_number_of_rows_and_not_with_their_length(tmp_path: Path) -> None:
    """8 MB in 2,000 rows: batches of 1 MB of text and its tokens, which are Python integers here."""

    def peak(name: str, rows: int, characters: int) -> int:
        made = ({"prompt": f"{n} " + "x" * 40, "answer": "y", "notes": "z" * characters} for n in range(rows))
        path = write_rows(tmp_path / name, made)
        tracemalloc.start()
        try:
            pack(tmp_path / f"out-{name}", path)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    short, long = peak("short", 2000, 40), peak("long", 2000, 4000)
    assert (tmp_path / "long").stat().st_size > 8_000_000
    assert long - short < 3_000_000


def test_rows_that_no_scorer_reads_are_refused(tmp_path: Path) -> None:
    """The limit of the scorer pool, for the row as it is packed."""

    def packed(characters: int) -> None:
        path = write_rows(
            tmp_path / "a.jsonl", [{"prompt": "a"}, {"prompt": "b"}, {"prompt": "p", "notes": "z" * characters}]
        )
        pack(tmp_path / f"out-{characters}", path)

    frame = len(row_record({"prompt": "p", "rendered": "<p>", "notes": ""}))
    packed(MAX_ROW_BYTES - frame)
    with pytest.raises(ConfigError, match=r"a\.jsonl, line 3: the row takes 1,048,577 bytes") as caught:
        packed(MAX_ROW_BYTES - frame + 1)
    assert "columns" in caught.value.remedy


def test_batches_are_bounded_by_all_columns(tmp_path: Path) -> None:
    """100 rows of 500 KB: without the bound, all are in memory at once."""
    path = write_rows(tmp_path / "a.jsonl", ({"prompt": f"p{n}", "notes": "z" * 500_000} for n in range(100)))
    tracemalloc.start()
    try:
        pack(tmp_path / "out", path)
        assert tracemalloc.get_traced_memory()[1] < 12_000_000
    finally:
        tracemalloc.stop()


def test_problems_in_system_messages_are_no_overlap(tmp_path: Path) -> None:
    asked = {"role": "user", "content": "Solve it."}
    rows = [{"prompt": [{"role": "system", "content": f"Grid {n}"}, asked], "answer": n} for n in range(4)]
    held_out = write_rows(tmp_path / "b", rows[3:])
    assert pack(tmp_path / "out", write_rows(tmp_path / "a", rows[:3]), held_out=held_out).held_out_rows == 1
    with pytest.raises(ConfigError, match="also trained on"):
        pack(tmp_path / "both", write_rows(tmp_path / "c", rows), held_out=held_out)
