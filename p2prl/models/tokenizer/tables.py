"""Tables of a run's tokenizer.json: its model's kind, vocabulary and merges, and its added tokens, all bounded.

Checked as decoded JSON, before the tokenizer library builds anything from them. Every fault is the learner's:
`RemoteProtocolError`.
"""

from __future__ import annotations

from collections.abc import Iterable

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits

MAX_TOKEN_CHARACTERS = 1024
"""Longest token; a completion of n tokens is at most that many times as long. Real ones: up to 512 spaces."""

MAX_MERGES = 2 * limits.MAX_VOCABULARY
"""Merges of a model: each makes a token, but some tokens can be made in several ways."""

MAX_ADDED_ENTRIES = 65_536
"""Added tokens, which are looked for in every text; Gemma has 6,400."""

MAX_WORD = 1_000
"""Longest word that WordPiece looks at, which takes the square of it; 100 in all known ones."""

MAX_DEPTH = 8
"""Objects and lists in each other, but for the tables; real ones have five."""

_MAX_WEIGHT = 1e6
"""Largest score of a piece; real ones are logarithms of probabilities."""

_WORD_TABLES = frozenset({"BPE", "WordLevel", "WordPiece"})
_MODELS = _WORD_TABLES | {"Unigram"}


def check_tables(tokenizer: dict[str, object]) -> None:
    """Refuse a decoded tokenizer.json whose tables are too large, too long, or garbled."""
    model = tokenizer.get("model")
    if not isinstance(model, dict):
        raise _refused("it has no model")
    kind = model.get("type")
    if not isinstance(kind, str) or kind not in _MODELS:
        raise _refused(f"model {str(kind)[:64]!r} is not supported")
    check_tokens(_pieces(model.get("vocab")) if kind == "Unigram" else _words(model.get("vocab")))
    if kind == "WordPiece" and not 0 < _integer(model.get("max_input_chars_per_word", 100)) <= MAX_WORD:
        raise _refused(f"its model looks at words of more than {MAX_WORD} characters")
    _check_merges(model.get("merges") if kind == "BPE" else None)
    check_tokens(_added(tokenizer.get("added_tokens")))
    tables = ("vocab", "merges")
    _check_depth([tokenizer | {"model": {k: v for k, v in model.items() if k not in tables}}])


def check_tokens(tokens: Iterable[str]) -> None:
    """Refuse a vocabulary, or added tokens, with a token that is too long."""
    if max(map(len, tokens), default=0) > MAX_TOKEN_CHARACTERS:
        raise _refused(f"a token is longer than {MAX_TOKEN_CHARACTERS} characters")


def _words(vocabulary: object) -> Iterable[str]:
    if not isinstance(vocabulary, dict) or not 0 < len(vocabulary) <= limits.MAX_VOCABULARY:
        raise _refused("its vocabulary is empty, too large, or no table")
    if not all(0 <= _integer(number) < limits.MAX_VOCABULARY for number in vocabulary.values()):
        raise _refused("its vocabulary has an id that no model has")
    return vocabulary


def _pieces(vocabulary: object) -> Iterable[str]:
    if not isinstance(vocabulary, list) or not 0 < len(vocabulary) <= limits.MAX_VOCABULARY:
        raise _refused("its vocabulary is empty, too large, or no table")
    for piece in vocabulary:
        if not (
            isinstance(piece, list)
            and len(piece) == 2
            and isinstance(piece[0], str)
            and isinstance(piece[1], int | float)
            and abs(piece[1]) <= _MAX_WEIGHT
        ):
            raise _refused("its vocabulary has an entry that is no piece with a score")
    return (piece[0] for piece in vocabulary)


def _check_merges(merges: object) -> None:
    if merges is None:
        return
    if not isinstance(merges, list) or len(merges) > MAX_MERGES:
        raise _refused("its merges are no list, or too many")
    for merge in merges:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
            raise _refused("a merge is not one of two tokens")
        check_tokens(parts)


def _added(entries: object) -> list[str]:
    if entries is None:
        return []
    if not isinstance(entries, list) or len(entries) > MAX_ADDED_ENTRIES:
        raise _refused(f"it adds more than {MAX_ADDED_ENTRIES:,} tokens, or no list of them")
    texts = [entry.get("content") if isinstance(entry, dict) else None for entry in entries]
    known = [text for text in texts if isinstance(text, str) and text]
    if len(known) < len(texts):
        raise _refused("an added token has no text")
    return known


def _check_depth(level: list[object]) -> None:
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise _refused("it is nested too deep")


def _integer(value: object) -> int:
    return value if type(value) is int else -1


def _refused(reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"run files: tokenizer.json: {reason}")
