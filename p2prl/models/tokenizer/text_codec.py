"""Text to token ids and back, the same on every peer of a run.

A thin wrapper of a tokenizer: no chat templates, no truncation, no clean-up of spaces, nothing that could depend on the
machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from p2prl.errors import RemoteProtocolError
from p2prl.models.tokenizer.control_text import ControlEncoding


@contextmanager
def library_panics() -> Iterator[None]:
    """Raise a panic of the tokenizer library as `RemoteProtocolError`: its rules and tokens come from other peers.

    A panic is no `Exception`, and its class has no importable name. Regular expressions that try too long cause one.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RemoteProtocolError(f"the run's tokenizer failed: {str(error)[:200]}") from error


class TextCodec:
    """Encodes prompts and decodes completions for one model."""

    def __init__(self, tokenizer: Any, model: Any) -> None:
        """`tokenizer` is a transformers fast tokenizer, `model` the causal LM it belongs to."""
        self._tokenizer = tokenizer
        config = model.config.get_text_config()
        self._vocabulary: int = config.vocab_size
        self._context: int | None = getattr(config, "max_position_embeddings", None)
        ends = model.generation_config.eos_token_id if model.generation_config is not None else None
        stops = {ends} if isinstance(ends, int) else set(ends or ())
        if tokenizer.eos_token_id is not None:
            stops.add(tokenizer.eos_token_id)
        self._stop_ids = frozenset(stops)
        self._encodings: dict[str, ControlEncoding] = {}

    def close(self) -> None:
        """End the process of a tokenizer that has one."""
        for encoding in self._encodings.values():
            encoding.close()
        if close := getattr(self._tokenizer, "close", None):
            close()

    @property
    def vocabulary(self) -> int:
        """Number of token ids the model's output covers; may exceed the tokenizer's own."""
        return self._vocabulary

    @property
    def context(self) -> int | None:
        """Tokens of the longest prompt and completion together; None when the model sets no limit."""
        return self._context

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end a completion: the end tokens of the model and of the tokenizer."""
        return self._stop_ids

    def encode(self, text: str, *, frame: tuple[str, str] = ("", ""), rendered: bool = False) -> tuple[int, ...]:
        """Token ids of one text, as `encode_all` gives them."""
        return self.encode_all([text], frame=frame, rendered=rendered)[0]

    def encode_all(
        self, texts: Sequence[str], *, frame: tuple[str, str] = ("", ""), rendered: bool = False
    ) -> list[tuple[int, ...]]:
        """Token ids of texts of tasks, each between the run's two texts of `frame`.

        Control tokens are read as such in the frame, and as plain text in `texts`. The special tokens that the
        tokenizer adds to a text are added, but not to `rendered` ones, which have theirs from a chat template.
        """
        with library_panics():
            encoding = self._encoding(frame)
            held = [bool(encoding.control.found([text])) for text in texts]
            cut = [encoding.control.between(frame, text) for text, has in zip(texts, held, strict=True) if has]
            whole = [frame[0] + text + frame[1] for text, has in zip(texts, held, strict=True) if not has]
            plain = self._tokenizer(whole, add_special_tokens=not rendered)["input_ids"] if whole else []
            rows = iter(plain), iter(encoding.encode(cut, special=not rendered))
            return [tuple(next(rows[has])) for has in held]

    def _encoding(self, frame: tuple[str, str]) -> ControlEncoding:
        """What control tokens are between the texts of a run's frame. A run has two frames."""
        written = "".join(frame)
        if written not in self._encodings:
            self._encodings[written] = ControlEncoding(self._tokenizer, written=written)
        return self._encodings[written]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Completion token ids (without the stop token) to text.

        Special tokens inside a completion stay visible, because removing them could change the meaning of its text.
        """
        with library_panics():
            text: str = self._tokenizer.decode(
                list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        return text
