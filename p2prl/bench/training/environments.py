"""Environments that benchmarks train on: a task, its alphabet, flawed demonstrations and the decoder that fits it.

All prompts of an environment have one length, so that nothing is padded before a completion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from p2prl.bench.training.decoder_shape import DecoderShape
from p2prl.errors import ConfigError
from p2prl.tasks import chain4, chain4_demonstrations, walk12, walk12_demonstrations
from p2prl.tasks.task import Task

_SPECIAL_TOKENS = 2
"""The beginning of a text and the end of a completion, after the symbols."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A task, with what a benchmark needs to train on it."""

    task: Task
    symbols: str
    """One token each, in this order."""
    max_new_tokens: int
    """Completion limit, tokens, the end included."""
    demonstration: Callable[[int], tuple[str, str]]
    """Seed → (prompt, completion), for the warm start."""
    warm_steps: int
    """Optimizer updates of the warm start."""
    warm_learning_rate: float
    """Peak learning rate of the warm start."""
    shape: DecoderShape
    result_version: int = 1
    """Raised when the task, its scoring or anything above changes: results of an older version are not used again."""

    @property
    def begin_token(self) -> int:
        """Precedes every prompt."""
        return len(self.symbols)

    @property
    def end_token(self) -> int:
        """Ends every completion."""
        return len(self.symbols) + 1

    def encode(self, text: str) -> list[int]:
        """Token ids of a text of this environment's symbols, without special tokens."""
        return [self.symbols.index(symbol) for symbol in text]

    def prompt_tokens(self, prompt: str) -> list[int]:
        """Token ids of a prompt, the beginning included."""
        return [self.begin_token, *self.encode(prompt)]

    def reward(self, prompt: str, tokens: Sequence[int], finished: bool) -> float:
        """Reward of a completion of `tokens`, its end token included if it has one."""
        symbols = tokens[:-1] if finished else tokens
        if any(token >= len(self.symbols) for token in symbols):
            return 0.0
        return self.task.score(prompt, "".join(self.symbols[token] for token in symbols), finished).reward


def _shape(symbols: str, context: int) -> DecoderShape:
    # One token more than is used: the size is then that of `p2prl/models/tiny_models.py`, whose alphabet has a
    # padding token.
    return DecoderShape(vocabulary=len(symbols) + _SPECIAL_TOKENS + 1, context=context)


_ENVIRONMENTS = {
    chain4.NAME: Environment(
        task=chain4.Chain4(),
        symbols=chain4.SYMBOLS,
        max_new_tokens=chain4.MAX_NEW_TOKENS,
        demonstration=chain4_demonstrations.demonstration,
        warm_steps=600,
        warm_learning_rate=4e-3,
        shape=_shape(chain4.SYMBOLS, 32),
    ),
    walk12.NAME: Environment(
        task=walk12.Walk12(),
        symbols=walk12.SYMBOLS,
        max_new_tokens=walk12.MAX_NEW_TOKENS,
        demonstration=walk12_demonstrations.demonstration,
        warm_steps=600,
        warm_learning_rate=4e-3,
        shape=_shape(walk12.SYMBOLS, 96),
    ),
}


def environment_by_name(name: str) -> Environment:
    """The environment whose task is called `name`; ConfigError when there is none."""
    if name not in _ENVIRONMENTS:
        raise ConfigError(f"no benchmark task is called {name!r}", remedy=f"Choose one of {', '.join(_ENVIRONMENTS)}.")
    return _ENVIRONMENTS[name]
