"""Verdict on a probe of a new run: whether its first policy can learn from its tasks, and what to change if not. Pure.

A gradient needs groups whose rewards differ. A run whose first policy gives none spends everybody's time until somebody
looks, so `p2prl init` refuses it, unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from p2prl.errors import ConfigError
from p2prl.plain_text import counted
from p2prl.tasks.scorer_failure_texts import failure_remedy, failure_text

FEWEST_GROUPS = 8
"""Groups from which a probe is judged: a policy of which a tenth of the groups have a signal shows none of it in so
many groups in two cases of five, and then it is no loss to be asked for --force."""

_LOW_SIGNAL = 0.05
"""Share of groups with a signal below which the user is told: nine tenths of the work would teach nothing."""

_ROUNDING = 1e-9
"""Share of the full reward by which a sum of weights may miss it."""

_MANY = 0.5
"""Share of completions cut off from which the length is blamed first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeFigures:
    """What a probe of one task came to."""

    groups: int
    group_size: int
    reward_mean: float
    reward_low: float
    reward_high: float
    """Lowest and highest reward of a completion."""
    signal_share: float
    """Share of groups whose rewards differ."""
    tokens_mean: float
    """Mean length of a completion, tokens."""
    truncated_share: float
    """Share of completions that the length limit cut off."""
    failed_share: float = 0.0
    """Share of completions that could not be scored, and count 0."""
    failures: tuple[str, ...] = ()
    """Why they could not, a text of `ScoredAnswer.failure` for each kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeFacts:
    """What the remedies depend on."""

    max_new_tokens: int
    room: int | None
    """Most new tokens that fit the model's context after the longest prompt; None without a limit."""
    template_unused: bool
    """Whether the model has a chat template that the run does not use."""
    uses_template: bool = False
    """Whether the run uses a chat template."""
    full_rewards: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Reward of a right answer, by task; 1 for a task that is missing."""

    def full_reward(self, task: str) -> float:
        """The reward of a completion of a task that does all it is paid for."""
        return self.full_rewards.get(task, 1.0)


class Fault(StrEnum):
    """Why nothing can be learned, in one clause."""

    UNSCORED = "the scorer failed on every completion"
    ALL_TRUNCATED = "every completion was cut off at the longest length, and none earned more than another"
    NO_REWARD = "no completion earned any reward"
    ALL_RIGHT = "every completion earned the full reward, so there is nothing left to learn"
    ALL_EQUAL = "the completions of each prompt all earned the same, so there is nothing to learn from"


def fault_of(figures: ProbeFigures, full_reward: float = 1.0) -> Fault | None:
    """What is wrong with a task, if nothing can be learned from it; None for a signal, or too few groups to tell.

    `full_reward` is that of a completion that does all it is paid for: below it, equal rewards are not right answers.
    """
    if figures.failed_share == 1.0:
        return Fault.UNSCORED  # of however few groups: a scorer that takes seconds leaves time for no more
    if figures.groups < FEWEST_GROUPS or figures.signal_share > 0.0:
        return None
    if figures.truncated_share == 1.0:
        return Fault.ALL_TRUNCATED
    if figures.reward_low >= full_reward - _ROUNDING * max(1.0, full_reward):
        return Fault.ALL_RIGHT
    nothing = figures.reward_low == figures.reward_high <= 0.0
    return Fault.NO_REWARD if nothing else Fault.ALL_EQUAL


def remedy_of(fault: Fault, figures: ProbeFigures, facts: ProbeFacts) -> str:
    """What to change, the likeliest cause first."""
    if fault is Fault.UNSCORED:
        return failure_remedy(figures.failures)
    if fault is Fault.ALL_RIGHT:
        return "Give harder prompts, or a smaller model."
    if fault is Fault.ALL_EQUAL and figures.reward_low < figures.reward_high:
        return "Raise --temperature or --group-size, so that a prompt's completions differ, or give other prompts."
    if facts.template_unused:
        return "The model has a chat template: give --chat-template on."
    if figures.truncated_share >= _MANY:
        return _longer(facts)
    if facts.uses_template:
        return (
            "Say in --system which form of answer the scorer reads, give easier prompts, or begin with a model that has"
            " learned the task from examples."
        )
    return "Give easier prompts, or begin with a model that has learned the task from examples (--model)."


def _fault_text(fault: Fault, figures: ProbeFigures) -> str:
    """The fault, and why the scorer failed where that is the fault."""
    return f"{fault}: {failure_text(figures.failures)}" if fault is Fault.UNSCORED else str(fault)


def _longer(facts: ProbeFacts) -> str:
    wanted = 4 * facts.max_new_tokens
    most = wanted if facts.room is None else min(wanted, facts.room)
    if most > facts.max_new_tokens:
        return f"Give --max-new-tokens {most}, or a model that ends its answers earlier."
    return "The model's context has no room for more: give a model with a longer one, or one that ends its answers."


def judge(figures: dict[str, ProbeFigures], facts: ProbeFacts) -> list[str]:
    """Notices about each task. `ConfigError` when none of them has anything to teach."""
    faults = {
        task: fault for task, each in figures.items() if (fault := fault_of(each, facts.full_reward(task))) is not None
    }
    if figures and len(faults) == len(figures):
        task, fault = next(iter(faults.items()))
        raise ConfigError(
            f"this run could not learn: in a probe of {counted(figures[task].groups, 'group')} of {task},"
            f" {_fault_text(fault, figures[task])}",
            remedy=f"{remedy_of(fault, figures[task], facts)} Or make the run all the same: --force. Nothing was made.",
        )
    notices = [
        f"{task}: {_fault_text(fault, figures[task])}. {remedy_of(fault, figures[task], facts)}"
        for task, fault in faults.items()
    ]
    for task, each in figures.items():
        if task in faults:
            continue
        if each.groups < FEWEST_GROUPS:
            notices.append(
                f"{task}: {counted(each.groups, 'group')} cannot show whether the run can learn: {FEWEST_GROUPS} can."
            )
            continue
        if each.signal_share < _LOW_SIGNAL:
            notices.append(f"{task}: only {each.signal_share:.0%} of the groups have anything to teach.")
        if each.truncated_share >= _MANY:
            notices.append(f"{task}: {each.truncated_share:.0%} of the completions were cut off. {_longer(facts)}")
    return notices


def figures_of(
    rewards: Sequence[Sequence[float]], lengths: Sequence[int], truncated: int, failures: Sequence[str] = ()
) -> ProbeFigures:
    """Figures of a task's groups: `rewards` by group, `lengths` in tokens and `truncated` over all completions, and why
    completions could not be scored, one text for each of `failures`."""
    flat = [reward for group in rewards for reward in group]
    count = max(1, len(flat))
    return ProbeFigures(
        groups=len(rewards),
        group_size=max(map(len, rewards), default=0),
        reward_mean=sum(flat) / count,
        reward_low=min(flat, default=0.0),
        reward_high=max(flat, default=0.0),
        signal_share=sum(min(group) < max(group) for group in rewards) / max(1, len(rewards)),
        tokens_mean=sum(lengths) / count,
        truncated_share=truncated / count,
        failed_share=len(failures) / count,
        failures=tuple(failures),
    )


def figures_text(figures: ProbeFigures) -> str:
    """The figures of a task in one line."""
    failed = (
        f", the scorer failed on {figures.failed_share:.0%}: {failure_text(figures.failures)}"
        if figures.failures
        else ""
    )
    return (
        f"reward {figures.reward_mean:.3f}, {figures.signal_share:.0%} of {figures.groups} groups with a signal,"
        f" {figures.tokens_mean:.0f} tokens a completion, {figures.truncated_share:.0%} cut off{failed}"
    )
