"""Chains of lettered steps whose skills or rule change while a policy trains, so that it does not come to rest.

A letter maps a digit to a digit. Small letters are right from the start; capital ones are the skills: demonstrations
mostly apply an older map, so the warm start does too. `arrive8` and `arrive40` ask one more skill in each of six
phases; in `flip8` the maps of all skills change places with the older ones, and back, and no prompt says which hold.
`rows8` is `arrive8` as a data set: each phase trains on rows of its own, and is tested on chains that are none of them.
`arrive40` writes every step out, in 121 to 177 tokens, about 149 on the mean: almost all are easy, two decide.

Each phase is a task of its own: prompts and scores depend on nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache

from p2prl.tasks.counter_rng import Draws
from p2prl.tasks.task import FAILED, MAX_SCORED_CHARS, Score
from p2prl.tasks.task_spec import Demonstration, SmallModel, TaskSpec
from p2prl_lab.bench.training.split4 import FIRST_TEST_SEED

DIGITS = "0123456789"
FILLER, MARK, BREAK = ".", "=", ";"

EASY = {"a": (1, 1), "b": (1, 3), "c": (1, 7), "d": (3, 0), "e": (7, 1), "f": (9, 2)}
"""Letter → (factor, added) of its map v → (factor · v + added) mod 10. All maps are one to one, so a mistake stays."""

NEW = {"U": (3, 4), "V": (7, 2), "W": (9, 5), "X": (3, 1), "Y": (7, 8), "Z": (9, 0)}
"""The same of the skills, in the order in which they arrive."""

OLD = {"U": (1, 5), "V": (1, 9), "W": (1, 2), "X": (1, 8), "Y": (1, 5), "Z": (1, 7)}
"""What demonstrations mostly do instead. No digit has the same image under both maps."""

SYMBOLS = DIGITS + "".join(EASY) + "".join(NEW) + FILLER + MARK + BREAK
"""Every character a prompt or an acceptable completion can hold."""

KNOWN = 0.35
"""Probability that a demonstration applies the new map. Below one half, so that greedy decoding of the warm start does
not; two skills in a prompt are then both right in one sampled completion of eight."""

_STEP_SYMBOLS = 4
"""Symbols of a step that is written out."""

_HARD_STEPS = 2
"""Steps of a prompt that are skills."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """What the phases of one task share."""

    name: str
    least: int
    """Fewest steps of a prompt."""
    most: int
    """Most steps; shorter prompts are filled up, since all prompts of a benchmark have one length."""
    written_out: bool
    """Write each step as value, letter, next value and `;` instead of the next value alone."""
    rows: int = 0
    """Rows of the training split of each phase; 0: every seed asks a prompt of its own."""

    @property
    def max_new_tokens(self) -> int:
        """Completion limit: the longest right completion, the end and two to spare."""
        return self.most * (_STEP_SYMBOLS if self.written_out else 1) + 3


@dataclass(frozen=True, slots=True)
class LetterChain:
    """One phase. The reward is 1 if and only if every step of a completion is right, and its end token follows."""

    form: Form
    skills: str
    """Skills that prompts ask."""
    flipped: bool = False
    """Whether the older maps are the right ones."""

    @property
    def name(self) -> str:
        """The name of all phases."""
        return self.form.name

    def prompt(self, seed: int) -> str:
        """A digit and its letters, such as `3aUbcdeVf=`; in `arrive40` 47 characters."""
        return _prompt(self.form, self.skills, seed)

    def score(self, prompt: str, completion: str, finished: bool) -> Score:
        """See `Task.score`. Spaces between symbols are ignored, so that a tokenizer may join them with spaces."""
        letters = prompt[1:-1].rstrip(FILLER)
        readable = len(prompt) == self.form.most + 2 and prompt[0] in DIGITS and prompt[-1] == MARK
        if not readable or not set(letters) <= {*EASY, *NEW} or len(completion) > MAX_SCORED_CHARS:
            return FAILED
        return Score(reward=float(finished and completion.replace(" ", "") == _right(self.form, prompt, self.flipped)))

    def draft(self, prompt: str, begun: str) -> str:
        """A guess of how a written-out completion goes on after `begun`: by the right maps, from its last value."""
        letters, (step, within) = prompt[1:-1].rstrip(FILLER), divmod(len(begun), _STEP_SYMBOLS)
        if step >= len(letters):
            return ""
        if within == _STEP_SYMBOLS - 1:  # all of this step is written but the break
            step, opened = step + 1, BREAK
        else:
            opened = ""
        value = {0: begun[-2:-1] or prompt[0], 1: begun[-1:], 2: begun[-2:-1], 3: begun[-1:]}[within]
        start = value if value in DIGITS else DIGITS[0]
        rest = written(self.form, start + letters[step:] + MARK, _maps(self.flipped))
        return opened + rest if opened else rest[within:]


@lru_cache(maxsize=1 << 18)
def _prompt(form: Form, skills: str, seed: int) -> str:
    """The prompt of a seed; every method and law that a benchmark compares asks the same ones. Of a form with rows a
    seed below `FIRST_TEST_SEED` asks one of them, any other seed a chain that is none."""
    if not form.rows:
        return _drawn(form, skills, seed)
    rows = training_rows(form, skills)
    if seed < FIRST_TEST_SEED:
        return list(rows)[Draws(b"p2prl/task/" + form.name.encode() + b"/choice/v1", seed).below(form.rows)]
    while (prompt := _drawn(form, skills, seed)) in rows:
        seed += 1
    return prompt


@cache
def training_rows(form: Form, skills: str) -> dict[str, None]:
    """The prompts of a phase's training split, each once."""
    rows, number = dict[str, None](), len(skills) << 32
    while len(rows) < form.rows:
        rows[_drawn(form, skills, number)] = None
        number += 1
    return rows


def _drawn(form: Form, skills: str, seed: int) -> str:
    draws = Draws(b"p2prl/task/" + form.name.encode() + b"/v1", seed)
    steps = form.least + draws.below(form.most - form.least + 1)
    easy = "".join(EASY)
    letters = [easy[draws.below(len(easy))] for _ in range(steps)]
    places = [draws.below(steps) for _ in range(_HARD_STEPS)]
    for place in places:
        letters[place] = skills[draws.below(len(skills))]
    filled = "".join(letters) + FILLER * (form.most - steps)
    return DIGITS[draws.below(10)] + filled + MARK


def _maps(flipped: bool) -> dict[str, tuple[int, int]]:
    return {**EASY, **(OLD if flipped else NEW)}


@lru_cache(maxsize=1 << 14)
def _right(form: Form, prompt: str, flipped: bool) -> str:
    """The right completion; many completions of one prompt are scored."""
    return written(form, prompt, _maps(flipped))


def written(form: Form, prompt: str, maps: dict[str, tuple[int, int]], olds: frozenset[int] = frozenset()) -> str:
    """The completion of a prompt by these maps, by `OLD` at the steps in `olds`, counted from 0."""
    value, parts = int(prompt[0]), []
    for step, letter in enumerate(prompt[1:-1].rstrip(FILLER)):
        factor, added = OLD[letter] if step in olds and letter in OLD else maps[letter]
        after = (factor * value + added) % 10
        parts.append(f"{value}{letter}{after}{BREAK}" if form.written_out else DIGITS[after])
        value = after
    return "".join(parts)


def demonstrations(form: Form) -> Demonstration:
    """Demonstrations of a form: all skills are asked, and each is mostly applied by its older map."""

    def demonstration(seed: int) -> tuple[str, str]:
        prompt = _prompt(replace(form, rows=0), "".join(NEW), seed)
        draws = Draws(b"p2prl/demonstration/" + form.name.encode() + b"/v1", seed)
        olds = frozenset(step for step in range(form.most) if not draws.chance(KNOWN))
        return prompt, written(form, prompt, {**EASY, **NEW}, olds)

    return demonstration


@dataclass(frozen=True, kw_only=True)
class MovingTask:
    """A task for benchmarks that changes on a schedule."""

    spec: TaskSpec
    """Its last phase, with the small model and demonstrations of all."""
    phases: tuple[LetterChain, ...]
    """Each is asked for one period of updates."""
    repeats: bool
    """Whether the first phase follows the last; otherwise the last one stays."""
    warm_steps: int
    """Optimizer updates of the warm start."""
    prompts_per_update: int = 16


def _moving(form: Form, phases: tuple[LetterChain, ...], *, goal: str, repeats: bool, warm_steps: int) -> MovingTask:
    model = SmallModel(symbols=SYMBOLS, context=1 + form.most + 2 + form.max_new_tokens)
    spec = TaskSpec(
        task=phases[-1],
        goal=goal,
        max_new_tokens=form.max_new_tokens,
        small_model=model,
        demonstration=demonstrations(form),
    )
    return MovingTask(spec=spec, phases=phases, repeats=repeats, warm_steps=warm_steps)


def _arriving(form: Form) -> tuple[LetterChain, ...]:
    return tuple(LetterChain(form, "".join(NEW)[: count + 1]) for count in range(len(NEW)))


_SHORT = Form(name="arrive8", least=8, most=8, written_out=False)
_LONG = Form(name="arrive40", least=30, most=44, written_out=True)
_ROWS = Form(name="rows8", least=8, most=8, written_out=False, rows=1024)
_FLIP = Form(name="flip8", least=8, most=8, written_out=False)

ARRIVE8 = _moving(
    _SHORT,
    _arriving(_SHORT),
    goal="teach a small model six skills that arrive one after another",
    repeats=False,
    warm_steps=600,
)
ROWS8 = _moving(
    _ROWS,
    _arriving(_ROWS),
    goal="teach a small model six skills that arrive one after another, each from 1,024 rows",
    repeats=False,
    warm_steps=600,
)
ARRIVE40 = _moving(
    _LONG,
    _arriving(_LONG),
    goal="teach a small model six skills that arrive one after another, in long completions",
    repeats=False,
    warm_steps=1500,
)
FLIP8 = _moving(
    _FLIP,
    tuple(LetterChain(_FLIP, "".join(NEW), flipped) for flipped in (False, True)),
    goal="teach a small model a rule that changes and changes back",
    repeats=True,
    warm_steps=600,
)
