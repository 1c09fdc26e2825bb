"""Demonstrations as token ids: prompts, completions, and which tokens of a completion the model learns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from p2prl.errors import LocalProtocolError
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.tasks.environment import next_message
from p2prl.tasks.task_spec import Demonstration, TurnsDemonstration


@dataclass(frozen=True, slots=True)
class DemonstrationRows:
    """A batch of demonstrations."""

    prompts: list[tuple[int, ...]]
    completions: list[tuple[int, ...]]
    """With all stop tokens and messages."""
    learned: list[tuple[bool, ...]]
    """For each token of a completion, whether the model says it."""


def demonstration_rows(
    codec: TextCodec, demonstration: Demonstration | TurnsDemonstration, seeds: Sequence[int]
) -> DemonstrationRows:
    """The demonstrations of these seeds. Texts of one turn lose the special token that begins a text."""
    end = (min(codec.stop_ids),)
    if isinstance(demonstration, TurnsDemonstration):
        return _of_turns(codec, demonstration, seeds, end)
    pairs = [demonstration(seed) for seed in seeds]
    prompts = codec.encode_all([prompt for prompt, _ in pairs])
    completions = [ids[1:] + end for ids in codec.encode_all([completion for _, completion in pairs])]
    return DemonstrationRows(prompts, completions, [(True,) * len(ids) for ids in completions])


def _of_turns(
    codec: TextCodec, demonstration: TurnsDemonstration, seeds: Sequence[int], end: tuple[int, ...]
) -> DemonstrationRows:
    environment = demonstration.environment
    episodes = [(seed, demonstration.turns(seed)) for seed in seeds]
    prompts = codec.encode_all([environment.opening(seed) for seed, _ in episodes])
    texts: dict[str, tuple[int, ...]] = {}  # an environment repeats itself

    def encode(text: str) -> tuple[int, ...]:
        if text not in texts:
            texts[text] = codec.encode(text, rendered=True)
        return texts[text]

    completions, learned = [], []
    for seed, turns in episodes:
        ids: tuple[int, ...] = ()
        mask: tuple[bool, ...] = ()
        for number, turn in enumerate(turns, 1):
            said = encode(turn) + end
            ids, mask = ids + said, mask + (True,) * len(said)
            if number == len(turns):
                break
            message = next_message(environment, seed, turns[:number])
            if message is None:
                raise LocalProtocolError(f"a demonstration of {environment.name} goes on after its end")
            heard = encode(message)
            ids, mask = ids + heard, mask + (False,) * len(heard)
        completions.append(ids)
        learned.append(mask)
    return DemonstrationRows(prompts, completions, learned)
