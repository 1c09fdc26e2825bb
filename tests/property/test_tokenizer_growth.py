"""Tokenizers of a run on any text: what is accepted lengthens a text by a bounded factor, and never panics."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from p2prl.errors import RemoteProtocolError
from p2prl.models.run_files.checks import read_tokenizer
from p2prl.models.tokenizer.checks import MAX_GROWTH

CHARACTERS = "a1 ▁Ġé字ﷺلİi̇ΐ\u0344ᾂ\U0001d160\ufb2c\ufdfa豈가🙂\n\t"
"""With those that normal forms, lower case and bytes make the most of."""

texts = st.text(st.sampled_from(CHARACTERS), max_size=12)
short = st.text(st.sampled_from(CHARACTERS), max_size=4)
patterns = short | st.sampled_from(["", "x*", ".", "a|", " {2,}", r"\b", r"\s+", "[^a]", "aa", ".+"]).map(Regex)
normalizer_steps = st.one_of(
    st.builds(normalizers.Replace, patterns, short),
    st.builds(normalizers.Prepend, short),
    st.sampled_from(
        [
            normalizers.NFC(),
            normalizers.NFD(),
            normalizers.NFKC(),
            normalizers.NFKD(),
            normalizers.Lowercase(),
            normalizers.StripAccents(),
            normalizers.Strip(),
            normalizers.Nmt(),
            normalizers.ByteLevel(),
            normalizers.BertNormalizer(),
            normalizers.BertNormalizer(strip_accents=True),
        ]
    ),
)
behaviors = st.sampled_from(["isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"])
pre_tokenizer_steps = st.one_of(
    st.builds(pre_tokenizers.Split, patterns, behaviors, invert=st.booleans()),
    st.builds(pre_tokenizers.ByteLevel, add_prefix_space=st.booleans(), use_regex=st.booleans()),
    st.builds(
        pre_tokenizers.Metaspace,
        replacement=st.sampled_from("▁a"),
        prepend_scheme=st.sampled_from(["always", "first", "never"]),
        split=st.booleans(),
    ),
    st.sampled_from(
        [
            pre_tokenizers.BertPreTokenizer(),
            pre_tokenizers.CharDelimiterSplit("a"),
            pre_tokenizers.Digits(),
            pre_tokenizers.Punctuation(),
            pre_tokenizers.UnicodeScripts(),
            pre_tokenizers.Whitespace(),
            pre_tokenizers.WhitespaceSplit(),
        ]
    ),
)
decoder_steps = st.one_of(
    st.builds(decoders.Replace, patterns, short),
    st.builds(decoders.Strip, st.sampled_from(" ▁a"), st.integers(0, 3), st.integers(0, 2)),
    st.builds(decoders.BPEDecoder, short),
    st.builds(decoders.WordPiece, short, st.booleans()),
    st.sampled_from([decoders.ByteLevel(), decoders.ByteFallback(), decoders.Fuse(), decoders.Metaspace()]),
)


def _accepted(**parts: Any) -> Any:
    """The library's tokenizer as a run's reader built it; None where it was refused."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    files = {"tokenizer.json": tokenizer.to_str().encode(), "tokenizer_config.json": b"{}"}
    try:
        return read_tokenizer(files, 4).backend_tokenizer
    except RemoteProtocolError:
        return None


@given(st.lists(normalizer_steps, max_size=5), st.lists(pre_tokenizer_steps, max_size=3), texts)
@settings(max_examples=600, deadline=None)
def test_accepted_steps_lengthen_a_text_by_a_bounded_factor(before: list[Any], after: list[Any], text: str) -> None:
    parts = {"normalizer": normalizers.Sequence(before), "pre_tokenizer": pre_tokenizers.Sequence(after)}
    backend = _accepted(**parts)
    if backend is None:
        return
    pieces = backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text))
    assert sum(len(piece) for piece, _ in pieces) <= (len(text) + 1) * MAX_GROWTH


@given(normalizer_steps, texts)
@settings(max_examples=600, deadline=None)
def test_no_normalizer_makes_more_of_a_text_than_its_own_growth(step: Any, text: str) -> None:
    """The bound that the product is made of: any growth of one step, repeated as often as accepted."""
    for times in range(1, 8):
        backend = _accepted(normalizer=normalizers.Sequence([step] * times))
        if backend is None:
            return
        assert len(backend.normalizer.normalize_str(text)) <= (len(text) + 1) * MAX_GROWTH


@given(st.lists(decoder_steps, max_size=4), st.lists(texts, max_size=4))
@settings(max_examples=600, deadline=None)
def test_accepted_decoders_lengthen_nothing_but_by_spaces_between_tokens(steps: list[Any], tokens: list[str]) -> None:
    backend = _accepted(decoder=decoders.Sequence(steps))
    if backend is None:
        return
    assert len(backend.decoder.decode(tokens)) <= sum(map(len, tokens)) + len(steps) * len(tokens)
