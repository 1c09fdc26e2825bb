"""Data sets in temporary files, packed with an encoder that needs no model: a token is a byte, a template two marks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from p2prl.tasks.data.data_plan import (
    HELD_OUT_PROMPTS_FILE,
    HELD_OUT_ROWS_FILE,
    PROMPTS_FILE,
    ROWS_FILE,
    DataPlan,
)
from p2prl.tasks.data.held_out_rows import refuse_overlap
from p2prl.tasks.data.packed_data import PackedPrompts, PackedRows
from p2prl.tasks.data.packing import DataPacker, PackedData
from p2prl.tasks.data.prompts import Prompt
from p2prl.tasks.data.split_packer import PromptRoom
from p2prl.tasks.data.tool_messages import Tool, tool_name


class ByteEncoder:
    """Renders `<prompt>` and encodes each byte as one token; `~` is unknown."""

    unknown_id: int | None = ord("~")

    def render(self, prompt: Prompt, tools: Sequence[Tool] = ()) -> str:
        texts = [prompt] if isinstance(prompt, str) else [f"{m['role']}:{m['content']}" for m in prompt]
        return f"<{'|'.join([*texts, *map(tool_name, tools)])}>"

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode()) for text in texts]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sums(count: int, *, first: int = 0) -> list[dict[str, Any]]:
    """Rows that differ, in GSM8K's columns."""
    return [
        {"question": f"What is {n} + {n}?", "answer": f"{n}+{n}\n#### {2 * n}"} for n in range(first, first + count)
    ]


ROOMY = PromptRoom(context=4096, max_new_tokens=16)


def pack(directory: Path, path: Path, *, room: PromptRoom = ROOMY, **changes: Any) -> PackedData:
    """Pack a file into a new directory, as `init` does."""
    directory.mkdir(parents=True)
    with closing(DataPacker(DataPlan(task="sums", path=path, **changes), directory, ByteEncoder(), room)) as packer:
        packer.pack(lambda stage, share: None)
        refuse_overlap([packer])
        return packer.finish()


def prompts_in(directory: Path, *, held_out: bool = False) -> list[str]:
    """The packed prompts as texts."""
    packed = PackedPrompts(directory / (HELD_OUT_PROMPTS_FILE if held_out else PROMPTS_FILE))
    return [bytes(packed.token_ids(row)).decode() for row in range(len(packed))]


def rows_in(directory: Path, *, held_out: bool = False) -> list[dict[str, Any]]:
    """The packed rows."""
    packed = PackedRows(directory / (HELD_OUT_ROWS_FILE if held_out else ROWS_FILE))
    return [packed.row(row) for row in range(len(packed))]


def packed_bytes(directory: Path) -> dict[str, bytes]:
    """Every packed file."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}
