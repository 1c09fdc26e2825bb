"""The grammar of split patterns: those of known tokenizers are in it; those that can try without end are not."""

from __future__ import annotations

import pytest

from p2prl.models.tokenizer.split_patterns import (
    MAX_COUNT,
    MAX_DEPTH,
    MAX_PATTERN_CHARACTERS,
    MAX_REPETITIONS,
    PatternError,
    check_pattern,
)

ENDINGS = r"'s|'t|'re|'ve|'m|'ll|'d"
KNOWN = {
    "gpt2": rf"{ENDINGS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+",
    "llama3": rf"(?i:{ENDINGS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",
    "qwen2": rf"(?i:{ENDINGS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$"
    r"|\s*[\r\n]|\s+(?!\S)|\s",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek, Han": "[一-龥぀-ゟ゠-ヿ]+",
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "kimi": r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}&&[^\p{Han}]]+",
    "digits": "[0-9][0-9][0-9]",
    "lines": r"\r?\n",
}


@pytest.mark.parametrize("kind", KNOWN)
def test_patterns_of_known_tokenizers_are_accepted(kind: str) -> None:
    check_pattern(KNOWN[kind])


@pytest.mark.parametrize(
    "pattern",
    [
        "", "(a+)+", "(a*)*", "(a|a)*", "(?:ab)+", "(a){2}", "(a){1,}", "a**", "a+*", "a{2}{3}", "a{2}*", "a|", "|a",
        "a||b",
        "()", "(?:)", r"(a)\1", r"\k<a>", r"(?<a>b)", r"(?<=a)b", r"(?<!a)b", r"(?>a+)b", r"(?~a)", r"(?#a)", r"(?a:b)",
        r"\g<0>", r"\K", r"\R", r"\X", r"\G", "a{,}", "a{", "(a", "a)", "[a", "[[a]", "[]", "*a", "+", "?", "{2}", "\\",
        r"[\k]", "a" * (MAX_PATTERN_CHARACTERS + 1), "a*" * (MAX_REPETITIONS + 1), "(a*)?" * (MAX_REPETITIONS + 1),
        f"a{{{MAX_COUNT + 1}}}", f"a{{1,{MAX_COUNT + 1}}}", "(" * (MAX_DEPTH + 1) + "a" + ")" * (MAX_DEPTH + 1),
        "[" * (MAX_DEPTH + 2) + "a" + "]" * (MAX_DEPTH + 2),
    ],
)  # fmt: skip
def test_what_can_try_without_end_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "a" * MAX_PATTERN_CHARACTERS, "a*" * MAX_REPETITIONS, f"a{{{MAX_COUNT}}}", "(a){1}", "(a){0,1}", "(a+)?",
        "(?=a+)",
        "(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH, "a*?b+?", r"^a$", r"\ba\B", r"\x41\x{1F600}\u0041",
        "|".join(["a*" * MAX_REPETITIONS] * 3), "[]a]", "[^]a]",
    ],
)  # fmt: skip
def test_the_largest_that_is_accepted(pattern: str) -> None:
    check_pattern(pattern)
