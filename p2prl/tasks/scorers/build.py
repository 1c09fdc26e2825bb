"""Build the row scorer of a scoring spec. The scorer runs in the sandbox; what else is here is cheap and pure."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from p2prl.errors import ConfigError
from p2prl.tasks.data.packed_data import Row
from p2prl.tasks.row_scorer import RowScorer
from p2prl.tasks.scorers.answer_scorer import AnswerScorer, Composite, Judge, Weighted
from p2prl.tasks.scorers.answer_text import UnusableRowError
from p2prl.tasks.scorers.choice import Choice
from p2prl.tasks.scorers.json_answer import JsonAnswer, schema_check
from p2prl.tasks.scorers.judges import Contains, Exact, Marked, Number
from p2prl.tasks.scorers.linear_regex import Format, LinearPattern, RegexAnswer
from p2prl.tasks.scorers.math_answer import MathAnswer
from p2prl.tasks.scorers.reasoning_gym_scorer import ReasoningGymScorer
from p2prl.tasks.scorers.spec import Reward, parse_spec
from p2prl.tasks.scorers.spec_options import SCORER_OPTIONS, THIRD_PARTY
from p2prl.tasks.scorers.trl_function import load_function
from p2prl.tasks.scorers.verifiers_taskset import VerifiersScorer


def build_scorer(spec: str, code: Path | None) -> RowScorer:
    """The row scorer of a spec; `code` is the researcher's file, if the run has one. Runs that file.

    `RemoteProtocolError` for a spec that is not canonical; `ConfigError` when a library is missing, a pattern or schema
    is refused, or the file does not give the function.
    """
    scoring = parse_spec(spec)
    return Composite(
        terms=tuple(
            Weighted(name=reward.scorer, weight=reward.weight, scorer=_scorer(reward, code))
            for reward in scoring.rewards
        )
    )


def runs_third_party_code(spec: str) -> bool:
    """Whether the spec runs code that p2prl cannot bound, so that each answer needs a forked child of its own.

    `RemoteProtocolError` for a spec that is not canonical.
    """
    return any(reward.scorer in THIRD_PARTY for reward in parse_spec(spec).rewards)


def needs_code(spec: str) -> bool:
    """Whether the spec names a function of the researcher's file. `RemoteProtocolError` as above."""
    return any(reward.scorer == "function" for reward in parse_spec(spec).rewards)


def length_penalty(spec: str, tokens: int) -> float:
    """The spec's penalty for a completion's length in tokens, 0 or less. Callers add it to the score."""
    return parse_spec(spec).penalty(tokens)


class RowCheck:
    """Finds rows that a spec's scorers cannot use, before a run starts. Runs no third-party code."""

    def __init__(self, spec: str) -> None:
        """Raises as `build_scorer` does."""
        rewards = [reward for reward in parse_spec(spec).rewards if reward.scorer not in THIRD_PARTY]
        self._scorers = [cast(AnswerScorer, _scorer(reward, None)) for reward in rewards]

    def problem(self, row: Row) -> str:
        """What is wrong with a row, as a clause such as `the column 'answer' is missing`; empty if nothing is."""
        try:
            for scorer in self._scorers:
                scorer.right_answer(row)
        except UnusableRowError as error:
            return str(error)
        return ""

    def right_answer(self, row: Row) -> str | None:
        """A completion that the first scorer with a right answer gives 1; None when none of them can make one."""
        for scorer in self._scorers:
            if (answer := scorer.right_answer(row)) is not None:
                return answer
        return None


def _scorer(reward: Reward, code: Path | None) -> RowScorer:
    if reward.scorer == "function":
        if code is None:
            raise ConfigError(
                "the scoring names a function, and the run has no scorer file", remedy="Make the run again with init."
            )
        return load_function(code, str(reward.option("function")))
    if reward.scorer == "verifiers":
        return VerifiersScorer(str(reward.option("taskset")))
    if reward.scorer == "reasoning-gym":
        return ReasoningGymScorer(after=str(reward.option("after")), truncated=bool(reward.option("truncated")))
    known = {"after": ""} | {name: reward.option(name) for name in ("after", "truncated") if _has(reward, name)}
    return AnswerScorer(judge=_judge(reward), after=str(known["after"]), truncated=bool(known["truncated"]))


def _judge(reward: Reward) -> Judge:
    name = reward.scorer
    column = str(reward.option("column")) if _has(reward, "column") else ""
    tolerance = float(reward.option("tolerance")) if _has(reward, "tolerance") else 0.0
    if name in ("exact", "contains"):
        ignore_case = bool(reward.option("ignore_case"))
        if name == "exact":
            return Exact(column=column, ignore_case=ignore_case)
        return Contains(column=column, ignore_case=ignore_case, where=str(reward.option("where")))
    if name == "number":
        return Number(column=column, tolerance=tolerance)
    if name in ("boxed", "hash"):
        return Marked(column=column, boxed=name == "boxed", tolerance=tolerance)
    if name == "choice":
        return Choice(column=column)
    if name == "json":
        schema = str(reward.option("schema"))
        return JsonAnswer(column=column, satisfied=schema_check(schema) if schema else None)
    if name == "math-verify":
        return MathAnswer(column)
    pattern = LinearPattern(str(reward.option("pattern")), scorer=name)
    if name == "regex":
        return RegexAnswer(pattern=pattern, column=column, tolerance=tolerance)
    assert name == "format", f"the scorer {name} is in the table of options and not here"
    return Format(pattern=pattern)


def _has(reward: Reward, option: str) -> bool:
    return option in SCORER_OPTIONS[reward.scorer]
