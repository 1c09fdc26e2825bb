"""Hostile tokenizer.json files: rules that multiply a text, try without end, or make the library panic or abort.

The checks of `p2prl/models/tokenizer/checks.py` refuse most. With the checks switched off, the confined process has to
hold all of them: `unchecked_program` starts one like that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2prl.confinement.children import Program
from p2prl.models.tokenizer.confined import tokenizer_program

VOCABULARY = 64

_WORDS = {"<unk>": 0, "a": 1, "1": 2, "b": 3, "x": 4, " ": 5, "▁": 6, "<s>": 7}
_NO_CHECKS = (
    "from p2prl.models.tokenizer import backend, process; backend.check_tokenizer = lambda rules: None; process.main()"
)


@dataclass(frozen=True)
class Bomb:
    """A tokenizer, and the text or tokens on which it goes off."""

    name: str
    rules: bytes
    text: str = "1"
    token_ids: tuple[int, ...] = (2,)
    """Tokens to decode besides."""


def _rules(model: dict[str, Any] | None = None, **parts: Any) -> bytes:
    document: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": _bpe() | (model or {}),
    }
    return json.dumps(document | parts).encode()


def _bpe(**options: Any) -> dict[str, Any]:
    plain = {"dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None}
    rest = {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": _WORDS, "merges": []}
    return {"type": "BPE", **plain, **rest, **options}


def _normal(steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": steps}


def _splits(steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": steps}


def _decode(steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", "decoders": steps}


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


_DAMAGED = {"type": "Precompiled", "precompiled_charsmap": "CAAAAP//////////YWFhYQA="}
_NFKC = {"type": "NFKC"}
_DOUBLE = _replace({"String": "1"}, "11")
_BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}
_WORD_PIECE = {"type": "WordPiece", "unk_token": "<unk>", "continuing_subword_prefix": "##", "vocab": _WORDS}
_NAMES_TWICE = [{"Sequence": {"id": "A", "type_id": 0}}] * 64


def bombs() -> tuple[Bomb, ...]:
    """The corpus."""
    spaces, letters = " " * 20_000 + "y", "a" * 30_000 + "b"
    return (
        Bomb("doubling", _rules(normalizer=_normal([_DOUBLE] * 40))),
        Bomb("doubling by a pattern", _rules(normalizer=_normal([_replace({"Regex": "1"}, "11")] * 40))),
        Bomb("long replacement", _rules(normalizer=_replace({"String": "1"}, "1" * 4_000_000)), "1" * 2_000),
        Bomb("prepending", _rules(normalizer=_normal([{"type": "Prepend", "prepend": "1" * 10**6}] * 16))),
        Bomb("prepending nothing", _rules(normalizer=_normal([{"type": "Prepend", "prepend": ""}] * 2)), ""),
        Bomb("replacing nothing", _rules(normalizer=_normal([_replace({"Regex": "x*"}, "xx")] * 40))),
        Bomb("replacing boundaries", _rules(normalizer=_normal([_replace({"Regex": r"\b"}, " a ")] * 40))),
        Bomb("normal forms", _rules(normalizer=_normal([_NFKC, _replace({"String": "ل"}, "ﷺ" * 8)] * 12)), "ﷺ"),
        Bomb("bytes of bytes", _rules(pre_tokenizer=_splits([_BYTES] * 24)), "é"),
        Bomb("bytes as normalizer", _rules(normalizer=_normal([{"type": "ByteLevel"}] * 24)), "é"),
        Bomb("marks between all", _rules(pre_tokenizer=_splits([
            _split("."), {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}] * 16)),
            "a" * 400),
        Bomb("nested repetition", _rules(pre_tokenizer=_split("(a+)+$")), letters),
        Bomb("nested repetition, possessive", _rules(pre_tokenizer=_split("((a*)*)*b?$")), letters),
        Bomb("alternatives that overlap", _rules(pre_tokenizer=_split("(a|a)*$")), letters),
        Bomb("back reference", _rules(pre_tokenizer=_split(r"(a*)\1*x")), letters),
        Bomb("look behind", _rules(pre_tokenizer=_split(r"(?<=a)a*x")), letters),
        Bomb("recursion", _rules(pre_tokenizer=_split(r"(?<r>a\g<r>*)x")), letters),
        Bomb("five repetitions", _rules(pre_tokenizer=_split(r"a*a*a*a*a*x")), letters),
        Bomb("four repetitions", _rules(pre_tokenizer=_split(r" *[ ]* *[ ]*x")), spaces),
        Bomb("large counts", _rules(pre_tokenizer=_split("(a{1,1000}){1,1000}x")), letters),
        Bomb("piece of nothing", _rules(pre_tokenizer={"type": "FixedLength", "length": 0}), letters),
        Bomb("long words", _rules(_WORD_PIECE | {"max_input_chars_per_word": 10**9}), "a" * 200_000),
        Bomb("doubling decoder", _rules(decoder=_decode([_DOUBLE] * 40))),
        Bomb("decoder by a pattern", _rules(decoder=_decode([_replace({"Regex": ""}, "11")] * 40))),
        Bomb("stripping decoder", _rules(decoder={"type": "Strip", "content": "1", "start": 0, "stop": 2})),
        Bomb("decoder without suffix", _rules(decoder=_decode([{"type": "BPEDecoder", "suffix": ""}] * 30))),
        Bomb("template that repeats", _rules(post_processor={
            "type": "TemplateProcessing", "single": _NAMES_TWICE, "pair": [], "special_tokens": {}}), "a" * 10_000),
        Bomb("damaged table", _rules(normalizer=_DAMAGED)),
        Bomb("long tokens", _rules({"vocab": _WORDS | {"1" * 4_000_000: 9}})),
        Bomb("far ids", _rules({"vocab": _WORDS | {"far": 2**32 - 1}})),
        Bomb("many added tokens", _rules(added_tokens=[_added(number) for number in range(100_000)])),
        Bomb("nesting", _rules().replace(b'"normalizer": null', b'"normalizer": ' + b"[" * 200_000 + b"]" * 200_000)),
        Bomb("empty vocabulary", _rules({"vocab": {}, "unk_token": None})),
        Bomb("not JSON", b"\xff" * 1_000_000),
    )  # fmt: skip


def _added(number: int) -> dict[str, Any]:
    flags = {"single_word": True, "lstrip": True, "rstrip": True, "normalized": True, "special": False}
    return {"id": 8 + number, "content": f"a{number}", **flags}


def unchecked_program() -> Program:
    """A tokenizer process that checks no rules: what the confinement alone has to hold."""
    program = tokenizer_program()
    *start, _program, path = program.command
    code = f"import json, sys; sys.path[:0] = json.loads(sys.argv[1]); {_NO_CHECKS}"
    root = str(Path(__file__).resolve().parents[2])
    paths = json.dumps([root, *(entry for entry in json.loads(path) if entry != root)])
    return Program(
        command=(*start, code, paths),
        environment={**(program.environment or {}), "PYTHONHASHSEED": "0"},
        folder=program.folder,
        silent=True,
    )
