"""tokenizer.json of a run: real kinds are accepted; one that multiplies texts is refused before anything is encoded."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.models.run_files.checks import read_tokenizer
from p2prl.models.run_files.export import export_run_files
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.tokenizer.checks import MAX_LITERAL, MAX_STEPS, check_tokenizer
from p2prl.models.tokenizer.tables import MAX_TOKEN_CHARACTERS, MAX_WORD
from p2prl.models.tokenizer.text_codec import TextCodec

FILES = export_run_files(tiny_model(seed=21))
WORDS = {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3, "1": 4, "▁": 5, "[SEP]": 6, "[CLS]": 7}


def _tokenizer(**parts: Any) -> Tokenizer:
    tokenizer = Tokenizer(parts.pop("model", models.BPE(vocab=WORDS, merges=[], unk_token="<unk>")))
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


def _read(data: bytes | str) -> Any:
    data = data.encode() if isinstance(data, str) else data
    return read_tokenizer({"tokenizer.json": data, "tokenizer_config.json": b"{}"}, 32)


def _split(pattern: str = r"\p{N}{1,3}| ?\p{L}+") -> Any:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _byte_level(**options: bool) -> Any:
    return pre_tokenizers.ByteLevel(**({"add_prefix_space": False, "use_regex": False} | options))


BOS = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
REAL = {
    "gpt2": _tokenizer(
        pre_tokenizer=pre_tokenizers.ByteLevel(),
        decoder=decoders.ByteLevel(),
        post_processor=processors.ByteLevel(trim_offsets=False),
    ),
    "qwen2": _tokenizer(
        normalizer=normalizers.NFC(),
        pre_tokenizer=pre_tokenizers.Sequence([_split(), _byte_level()]),
        decoder=decoders.ByteLevel(),
        post_processor=processors.ByteLevel(trim_offsets=False),
    ),
    "llama2": _tokenizer(
        normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        decoder=decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        ),
        post_processor=BOS,
    ),
    "gemma": _tokenizer(
        normalizer=normalizers.Replace(" ", "▁"),
        pre_tokenizer=pre_tokenizers.Split(" ", "merged_with_previous"),
        decoder=decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        post_processor=BOS,
    ),
    "llama3": _tokenizer(
        pre_tokenizer=pre_tokenizers.Sequence([_split(), _byte_level()]),
        decoder=decoders.ByteLevel(),
        post_processor=processors.Sequence([processors.ByteLevel(trim_offsets=False), BOS]),
    ),
    "deepseek": _tokenizer(
        normalizer=normalizers.Sequence([]),
        pre_tokenizer=pre_tokenizers.Sequence([_split(), _split("[一-龥]+"), _split("[!-/]"), _byte_level()]),
        decoder=decoders.ByteLevel(),
    ),
    "bert": _tokenizer(
        model=models.WordPiece(vocab=WORDS, unk_token="<unk>"),
        normalizer=normalizers.BertNormalizer(),
        pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
        decoder=decoders.WordPiece(),
        post_processor=processors.BertProcessing(("[SEP]", 6), ("[CLS]", 7)),
    ),
    "unigram": _tokenizer(
        model=models.Unigram([("<unk>", 0.0), ("a", -1.25), ("▁", -2.0)], 0, True),
        normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]),
        pre_tokenizer=pre_tokenizers.Metaspace(),
        decoder=decoders.Metaspace(),
    ),
}

DOUBLE = normalizers.Replace("1", "11")
NAMED_TWICE = processors.TemplateProcessing(single="<s> $A $A", special_tokens=[("<s>", 1)])
HOSTILE = {
    "replace": (_tokenizer(normalizer=normalizers.Sequence([DOUBLE] * 15)), "characters of one"),
    "many steps": (_tokenizer(normalizer=normalizers.Sequence([normalizers.NFC()] * (MAX_STEPS + 1))), "steps"),
    "nested": (
        _tokenizer(normalizer=normalizers.Sequence([normalizers.Sequence([DOUBLE] * 5)] * 3)),
        "characters of one",
    ),
    "regex": (
        _tokenizer(normalizer=normalizers.Sequence([normalizers.Replace(Regex("1"), "11")] * 9)),
        "characters of one",
    ),
    "regex that matches nothing": (_tokenizer(normalizer=normalizers.Replace(Regex("x*"), "1")), "match nothing"),
    "regex between": (_tokenizer(normalizer=normalizers.Replace(Regex(r"\b"), "1")), "match nothing"),
    "slow regex": (_tokenizer(normalizer=normalizers.Replace(Regex("(1+)+x"), "1")), "match nothing"),
    "empty pattern": (_tokenizer(normalizer=normalizers.Replace("", "1")), "match nothing"),
    "prepend": (_tokenizer(normalizer=normalizers.Prepend("1" * 1000)), "characters of one"),
    "prepend nothing": (_tokenizer(normalizer=normalizers.Prepend("")), "panics"),
    "normal form and replace": (
        _tokenizer(normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("ل", "ﷺ")] * 4)),
        "characters of one",
    ),
    "byte level": (_tokenizer(pre_tokenizer=pre_tokenizers.Sequence([_byte_level()] * 8)), "characters of one"),
    "byte level normalizer": (
        _tokenizer(normalizer=normalizers.Sequence([normalizers.ByteLevel()] * 8)),
        "characters of one",
    ),
    "metaspace": (
        _tokenizer(pre_tokenizer=pre_tokenizers.Sequence([_split("."), pre_tokenizers.Metaspace()] * 8)),
        "characters of one",
    ),
    "fixed length": (_tokenizer(pre_tokenizer=pre_tokenizers.FixedLength(0)), "not supported"),
    "decoder": (_tokenizer(decoder=decoders.Sequence([decoders.Replace("a", "aa")] * 2)), "decoder"),
    "bpe decoder": (_tokenizer(decoder=decoders.BPEDecoder("")), "suffix"),
    "strip": (_tokenizer(decoder=decoders.Strip(" ", 0, 2)), "panics"),
    "ctc": (_tokenizer(decoder=decoders.CTC(word_delimiter_token="")), "not supported"),
    "template": (_tokenizer(post_processor=NAMED_TWICE), "each sequence once"),
    "templates": (_tokenizer(post_processor=processors.Sequence([BOS] * 2)), "more than one"),
    "affix": (_tokenizer(model=models.WordPiece(vocab=WORDS, continuing_subword_prefix="#" * 1000)), "longer"),
    "dropout": (_tokenizer(model=models.BPE(vocab=WORDS, merges=[], dropout=0.5)), "at random"),
    "long token": (_tokenizer(model=models.WordLevel({"a" * (MAX_TOKEN_CHARACTERS + 1): 0}, "a")), "token is longer"),
}


@pytest.mark.parametrize("kind", REAL)
def test_real_kinds_are_accepted_and_encode_the_same(kind: str) -> None:
    text = "a1 a  é字\n1"
    read = _read(REAL[kind].to_str())
    assert read.encode(text) == REAL[kind].encode(text).ids
    if kind != "unigram":  # without an id 5
        assert read.decode([3, 4, 5]) == REAL[kind].decode([3, 4, 5], skip_special_tokens=False)


@pytest.mark.parametrize("kind", HOSTILE)
def test_tokenizers_that_multiply_or_panic_are_refused(kind: str) -> None:
    tokenizer, message = HOSTILE[kind]
    start = time.process_time()
    with pytest.raises(RemoteProtocolError, match=message):
        _read(tokenizer.to_str())
    assert time.process_time() - start < 1.0


def test_damaged_tables_and_long_added_tokens_are_refused() -> None:
    rules = json.loads(REAL["gpt2"].to_str())
    rules["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "CAAAAP//////////YWFhYQA="}
    with pytest.raises(RemoteProtocolError, match="not supported"):
        _read(json.dumps(rules))
    tokenizer = Tokenizer.from_str(REAL["gpt2"].to_str())
    tokenizer.add_tokens([AddedToken("a" * (MAX_TOKEN_CHARACTERS + 1))])
    with pytest.raises(RemoteProtocolError, match="token is longer"):
        _read(tokenizer.to_str())


@pytest.mark.parametrize("depth", [40, 100, 400, 100_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    rules = REAL["gpt2"].to_str()
    nested = '{"type":"Sequence","normalizers":[' * depth + "]}" * depth
    with pytest.raises(RemoteProtocolError):
        _read(rules.replace('"normalizer":null', f'"normalizer":{nested}'))
    with pytest.raises(RemoteProtocolError):
        _read(rules.replace('"added_tokens":[]', '"added_tokens":' + "[" * depth + "]" * depth))


def test_only_what_was_checked_is_read() -> None:
    """A key written twice: the checks see the last value, and so does the library."""
    rules = REAL["gpt2"].to_str()
    doubled = json.dumps({"type": "Sequence", "normalizers": [{"type": "Replace"}] * 40})
    twice = rules.replace('"normalizer":null', f'"normalizer":{doubled},"normalizer":null')
    assert _read(twice).backend_tokenizer.normalizer is None


@pytest.mark.parametrize("section", ["normalizer", "pre_tokenizer", "post_processor", "decoder", "model"])
@pytest.mark.parametrize("value", [1, "NFC", [], {}, {"type": 5}, {"type": "Sequence"}, {"type": "Replace"}])
def test_garbled_sections_are_refused(section: str, value: object) -> None:
    with pytest.raises(RemoteProtocolError):
        _read(json.dumps(json.loads(REAL["gpt2"].to_str()) | {section: value}))


def test_a_model_with_such_a_tokenizer_is_not_exported() -> None:
    loaded = tiny_model()
    loaded.tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([DOUBLE] * 15)
    with pytest.raises(ConfigError, match="cannot use"):
        export_run_files(loaded)


def test_a_regex_that_tries_too_long_is_the_learners_fault() -> None:
    files = {"tokenizer.json": _tokenizer().to_str().encode(), "tokenizer_config.json": b"{}"}
    tokenizer = read_tokenizer(files, 32)
    tokenizer.backend_tokenizer.pre_tokenizer = _split("(a+)+$")
    codec = TextCodec(tokenizer, tiny_model().model)
    assert codec.encode("aaa") == (3, 3, 3)
    for encode in (codec.encode, lambda text: codec.encode_all([text])):
        with pytest.raises(RemoteProtocolError, match="retry-limit"):
            encode("a" * 2000 + "b")


MODEL = json.loads(REAL["gpt2"].to_str())["model"]
PIECES = json.loads(REAL["unigram"].to_str())["model"]
WORDS_ONLY = json.loads(REAL["bert"].to_str())["model"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (MODEL | {"type": "Neural"}, "not supported"),
        (MODEL | {"vocab": {}}, "vocabulary"),
        (MODEL | {"vocab": {"a": "1"}}, "an id that no model has"),
        (MODEL | {"vocab": {"a": -1}}, "an id that no model has"),
        (MODEL | {"vocab": {"a": True}}, "an id that no model has"),
        (MODEL | {"merges": ["a"]}, "two tokens"),
        (MODEL | {"merges": [["a", 1]]}, "two tokens"),
        (MODEL | {"merges": [["a", "b" * (MAX_TOKEN_CHARACTERS + 1)]]}, "token is longer"),
        (MODEL | {"merges": {}}, "no list"),
        (MODEL | {"options": [[[[[[[[[]]]]]]]]]}, "nested"),
        (PIECES | {"vocab": [["a", 1e9]]}, "piece with a score"),
        (PIECES | {"vocab": [["a", -1e9]]}, "piece with a score"),
        (PIECES | {"vocab": [["a"]]}, "piece with a score"),
        (PIECES | {"vocab": {"a": 1}}, "vocabulary"),
        (WORDS_ONLY | {"max_input_chars_per_word": 0}, "words of more"),
        (WORDS_ONLY | {"max_input_chars_per_word": MAX_WORD + 1}, "words of more"),
    ],
)
def test_garbled_and_oversized_tables_are_refused_before_the_library_reads_them(
    model: dict[str, object], message: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=message):
        check_tokenizer(json.loads(REAL["gpt2"].to_str()) | {"model": model})


@pytest.mark.parametrize("entries", [5, [5], [{}], [{"content": ""}], [{"content": 5}]])
def test_added_tokens_without_a_text_are_refused(entries: object) -> None:
    with pytest.raises(RemoteProtocolError, match=r"added token|no list"):
        check_tokenizer(json.loads(REAL["gpt2"].to_str()) | {"added_tokens": entries})


def test_longest_texts_of_steps() -> None:
    for length, refused in ((MAX_LITERAL, False), (MAX_LITERAL + 1, True)):
        parts: list[dict[str, object]] = [
            {"normalizer": normalizers.Replace("a" * length, "b")},
            {"pre_tokenizer": pre_tokenizers.Split("a" * length, "isolated")},
        ]
        for part in parts:
            rules = json.loads(_tokenizer(**part).to_str())
            if refused:
                with pytest.raises(RemoteProtocolError, match="longer than"):
                    check_tokenizer(rules)
            else:
                check_tokenizer(rules)


@pytest.mark.parametrize("kind", [{}, [], None, 3, {"type": "BPE"}])
def test_a_model_whose_kind_is_no_text_is_refused(kind: Any) -> None:
    rules = json.loads(REAL["gpt2"].to_str())
    rules["model"]["type"] = kind
    with pytest.raises(RemoteProtocolError, match="is not supported"):
        check_tokenizer(rules)
