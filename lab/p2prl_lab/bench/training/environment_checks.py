"""Checks of a task on a few seeds before hours are spent on it: sizes, symbols, determinism and rewards."""

from __future__ import annotations

from p2prl.errors import require
from p2prl_lab.bench.training.environments import MOST_PROMPT_SYMBOLS, Environment, broken_task, score_of

CHECKED_SEEDS = 16
"""Seeds tried. Enough to meet every branch of a small task; a fault that is rarer shows up in training."""


def check_environment(environment: Environment) -> None:
    """Raise ConfigError, saying what is wrong, for a task that a benchmark cannot train on."""
    name = environment.task.name
    require("max_new_tokens", environment.max_new_tokens, environment.max_new_tokens >= 1, "1 or more")
    length = None
    for seed in range(CHECKED_SEEDS):
        prompt, (shown, completion) = _made(environment, seed)
        if not all(map(_is_text, (prompt, shown, completion))):
            raise broken_task(name, f"seed {seed} makes a prompt or demonstration that is not text")
        if environment.task.prompt(seed) != prompt:
            raise broken_task(name, f"seed {seed} makes different prompts each time")
        length = len(prompt) if length is None else length
        if length > MOST_PROMPT_SYMBOLS:
            raise broken_task(name, f"its prompts have {length:,} symbols, more than {MOST_PROMPT_SYMBOLS:,}")
        if len(prompt) != length or len(shown) != length or not prompt:
            raise broken_task(
                name, f"the prompts of seeds 0 and {seed} differ in length, or are empty; all need one length"
            )
        unknown = sorted(set(prompt + shown + completion) - set(environment.symbols))
        if unknown:
            raise broken_task(name, f"seed {seed} uses {unknown[0]!r}, which is not among the small model's symbols")
        if len(completion) + 1 > environment.max_new_tokens:
            raise broken_task(name, f"the demonstration of seed {seed} is longer than max_new_tokens")
        _check_score(environment, shown, completion)
        _check_score(environment, prompt, "")
    if length is not None and 1 + length + environment.max_new_tokens > environment.shape.context:
        raise broken_task(
            name, f"a prompt and a completion exceed the small model's context of {environment.shape.context}"
        )


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _made(environment: Environment, seed: int) -> tuple[str, tuple[str, str]]:
    try:
        return environment.task.prompt(seed), environment.demonstration(seed)
    except Exception as error:  # a stranger's task may raise anything at all
        raise broken_task(environment.task.name, f"seed {seed} raises {type(error).__name__}: {error}") from error


def _check_score(environment: Environment, prompt: str, completion: str) -> None:
    for finished in (True, False):
        rewards = {score_of(environment.task, prompt, completion, finished) for _ in range(2)}
        if len(rewards) != 1:
            raise broken_task(
                environment.task.name, f"{completion!r} is scored {sorted(rewards)}; one reward is needed each time"
            )
