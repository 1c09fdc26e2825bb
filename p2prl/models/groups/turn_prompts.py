"""Prompts made from seeds: those of tasks of one turn, and the openings of environments with what follows them."""

from __future__ import annotations

from dataclasses import replace

from p2prl.models.groups.slot_prompts import ProceduralPrompts, PromptSource, SlotPrompt
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.models.turns import TurnRules
from p2prl.protocol.manifests import RunManifest
from p2prl.protocol.work_slots import Slot
from p2prl.tasks.environment import Environment, EnvironmentTask
from p2prl.tasks.task import Task


def seeded_prompts(task: Task, manifest: RunManifest, codec: TextCodec) -> PromptSource:
    """The prompts of a task that makes them from seeds."""
    prompts = ProceduralPrompts(task, manifest.prompt_frame, codec)
    if not isinstance(task, EnvironmentTask):
        return prompts
    return EnvironmentPrompts(task.environment, prompts, manifest, codec)


class EnvironmentPrompts:
    """The openings of an environment, each with the rules of the turns that follow."""

    def __init__(
        self, environment: Environment, openings: ProceduralPrompts, manifest: RunManifest, codec: TextCodec
    ) -> None:
        self._environment = environment
        self._openings = openings
        self._manifest = manifest
        self._codec = codec

    def prompt(self, work: Slot, peer: bytes, *, held_out: bool) -> SlotPrompt:
        """See `PromptSource`."""
        opening = self._openings.prompt(work, peer, held_out=held_out)
        turns = TurnRules(
            environment=self._environment,
            seed=work.prompt_seed,
            codec=self._codec,
            max_new_tokens=self._manifest.sampling.max_new_tokens,
            frame=self._manifest.turn_frame,
        )
        return replace(opening, turns=turns)
