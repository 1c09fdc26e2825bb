"""The text that the small model's tokenizer is trained on, generated from word lists: the same on every machine.

A tokenizer learns its entries from the words of a text. So the text holds word problems, numbers in words, arithmetic,
code-like lines, and the words that regular endings and prefixes make of a list of English stems.
"""

from __future__ import annotations

from collections.abc import Iterator

from p2prl.models.small_models.stems import FUNCTION_WORDS, NOUNS, STEMS
from p2prl.tasks.word_problems.problems import solution, word_problem

_PROBLEMS = 2000
"""Word problems of the text."""

_ENDINGS = ("", "s", "ed", "ing", "er", "ers", "able", "ment", "ments", "less", "ness", "ly", "ful", "ingly", "ability")
_PREFIXES = ("", "re", "un", "over", "under", "out", "mis", "pre", "non", "inter")

_UNITS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"


def corpus() -> Iterator[str]:
    """The lines of the text."""
    for number in range(_PROBLEMS):
        problem = word_problem(number)
        yield f"{problem.question}\n{solution(problem)}"
    yield from _numbers()
    yield from _sentences()
    yield from _word_family()


def _numbers() -> Iterator[str]:
    units = [*_UNITS.split(), "eighteen", "nineteen"]
    for number, unit in enumerate(units):
        yield f"{unit} {unit.capitalize()} {number + 1} {unit}-fold"
    for ten in _TENS.split():
        yield " ".join([ten, ten.capitalize(), *(f"{ten}-{unit}" for unit in units[:9])])
    for a in range(20):
        yield "\n".join(f"{a} + {b} = {a + b}; {a} - {b} = {a - b}; {a} * {b} = ({a} * {b}) / 1" for b in range(20))


def _sentences() -> Iterator[str]:
    """Every function word before and after nouns, in lower case and at the start of a sentence."""
    nouns = NOUNS.split()
    for place, word in enumerate(FUNCTION_WORDS.split()):
        noun, other = nouns[place % len(nouns)], nouns[(7 * place + 3) % len(nouns)]
        for _ in range(6):
            yield f"{word.capitalize()} {noun} is {word} the {other}, {word} a {noun}: {word}? {word}!"
    for noun in nouns:
        for _ in range(4):
            yield f"The {noun} and a {noun}. {noun.capitalize()}s of {noun}s, my {noun}'s {noun}."


def _word_family() -> Iterator[str]:
    """Each stem with every ending and prefix, commoner forms more often."""
    for stem in STEMS.split():
        for ending in _ENDINGS:
            word = _join(stem, ending)
            for prefix in _PREFIXES:
                times = (3 if not prefix else 1) + (2 if not ending else 0)
                yield f" {prefix}{word}" * times
            yield f"{word.capitalize()} "


def _join(stem: str, ending: str) -> str:
    """The stem with the ending, spelled by the common rules: make, making; carry, carries."""
    if not ending:
        return stem
    vowel = ending[0] in "aeiou"
    if stem.endswith("e") and vowel:
        return stem[:-1] + ending
    if stem.endswith("y") and stem[-2] not in "aeiou" and not ending.startswith("i"):
        return stem[:-1] + ("ies" if ending == "s" else "i" + ending)
    if ending == "s" and stem.endswith(("s", "x", "z", "ch", "sh")):
        return stem + "es"
    return stem + ending
