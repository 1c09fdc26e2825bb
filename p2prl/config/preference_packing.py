"""Preferences of a new run: rows packed as tokens, which stay in the run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from p2prl.errors import ConfigError
from p2prl.learner.training.preferences import pair_record
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.tokenizer.prompt_rendering import PromptRenderer
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.plain_text import counted
from p2prl.tasks.data.data_source import open_source
from p2prl.tasks.data.packed_file import PackedWriter
from p2prl.tasks.data.preference_rows import PreferenceRow, preference_rows

FOLDER = "preferences"
"""Folder of a run with preferences, never shipped."""

PAIRS_FILE, REFERENCE_FILE = "pairs.packed", "reference.packed"

_BATCH_ROWS = 256
"""Rows encoded in one call, which uses all cores."""


class PreferencePacker:
    """Turns rows into tokens: the prompt as the run renders its prompts, the answers as its model would end them."""

    def __init__(self, loaded: LoadedModel, renderer: PromptRenderer, *, drop_long: bool) -> None:
        self._codec = TextCodec(loaded.tokenizer, loaded.model)
        self._renderer = renderer
        self._drop_long = drop_long
        end = renderer.ending()
        if end not in self._codec.stop_ids:
            end = loaded.tokenizer.eos_token_id
        self._end = min(self._codec.stop_ids) if end is None else end
        self._longest = self._codec.context
        self._same = self._long = 0

    def pack(self, path: Path, folder: Path, on_progress: Callable[[str, float], None]) -> str:
        """Write the pairs of a file into a folder; a sentence about them. `ConfigError` for the first faulty row."""
        folder.mkdir()
        source, pairs = open_source(path), 0
        with PackedWriter(folder / PAIRS_FILE) as writer:
            rows = preference_rows(source)
            while batch := list(islice(rows, _BATCH_ROWS)):
                for records in self._encoded(batch):
                    pairs += 1
                    for token_ids in records:
                        writer.append(pair_record(token_ids))
                on_progress("packing the preferences", source.share_done)
            if not pairs:
                raise ConfigError(f"{path}: no pair is left of the preferences", remedy="Give other rows.")
            writer.finish()
        said = [f"Preferences: {counted(pairs, 'pair')} to train on"]
        if self._same:
            said.append(f"{counted(self._same, 'row')} with equal answers left out")
        if self._long:
            said.append(f"{counted(self._long, 'row')} longer than the model's context left out")
        return "; ".join(said) + "."

    def _encoded(self, rows: list[PreferenceRow]) -> Iterator[tuple[list[int], list[int], list[int]]]:
        """Prompt, chosen and rejected answer of each row that is kept."""
        prompts = self._renderer.encode_all([self._rendered(row) for row in rows])
        answers = self._codec.encode_all([text for row in rows for text in (row.chosen, row.rejected)], rendered=True)
        for row, prompt, chosen, rejected in zip(rows, prompts, answers[::2], answers[1::2], strict=True):
            longest = len(prompt) + max(len(chosen), len(rejected)) + 1
            if chosen == rejected:
                self._same += 1
            elif self._longest is None or longest <= self._longest:
                yield prompt, [*chosen, self._end], [*rejected, self._end]
            elif self._drop_long:
                self._long += 1
            else:
                raise ConfigError(
                    f"{row.place}: prompt and answer have {longest:,} tokens, more than the model's {self._longest:,}",
                    remedy="Leave such rows out with --drop-long.",
                )

    def _rendered(self, row: PreferenceRow) -> str:
        try:
            return self._renderer.render(row.prompt, row.tools)
        except ConfigError as error:
            raise ConfigError(f"{row.place}: {error}", remedy=error.remedy) from error
