"""A reward model: a transformers classifier with one label that scores completions, or the ends of their steps.

The learner alone has one. Texts are scored one at a time, since padding changes a score's last digits: a completion has
one score, whatever it was scored beside. Its own text never becomes a control token, or a policy could write the end of
a text and choose where its score is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open

from p2prl.errors import ConfigError, MachineError
from p2prl.models.base_model.attention import exact_attention
from p2prl.models.base_model.pretrained import check_weights, library_errors, quiet_transformers
from p2prl.models.rewards.reward_model_folder import reward_model_kind, weight_files
from p2prl.models.tokenizer.control_text import ControlEncoding
from p2prl.models.tokenizer.text_codec import library_panics
from p2prl.tasks.process_scorer import Judgement

_STORED = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_PROBE = "a"
"""A text that shows which special tokens the tokenizer puts around one."""

_MOST = 1e3
"""Largest score: with the largest factor, a reward of as much as a receipt may state."""


def stored_weights(directory: Path) -> tuple[int, torch.dtype]:
    """(number of weights, number type of the widest). `ConfigError` for a file that is no safetensors, or another
    type."""
    count, found = 0, set()
    for name in weight_files(directory):
        with (
            library_errors(f"{directory / name} cannot be read", "Save the reward model again as safetensors."),
            safe_open(directory / name, framework="pt") as file,
        ):
            for key in file.keys():  # noqa: SIM118 - not a dict
                tensor = file.get_slice(key)
                count += math.prod(tensor.get_shape())
                found.add(str(tensor.get_dtype()))
    known = [dtype for name, dtype in _STORED.items() if name in found]
    if not known:
        raise ConfigError(
            f"the weights of the reward model {directory} are of type {', '.join(sorted(found)) or 'none'}",
            remedy=f"Save them as one of {', '.join(_STORED)}.",
        )
    return count, known[0]


class RewardModel:
    """A classifier on its device, with its tokenizer."""

    def __init__(self, directory: Path, device: torch.device) -> None:
        """Load the model of a checked folder (`reward_model_directory`), in the type of its weights.

        `ConfigError` when it cannot be loaded, has more than one label or lacks weights, such as those of its head.
        """
        quiet_transformers()
        self.kind = reward_model_kind(directory)
        self.parameters, self.dtype = stored_weights(directory)
        self.cut = 0
        options = {"local_files_only": True, "trust_remote_code": False}
        with library_errors(f"config.json of the reward model {directory} cannot be used", "Save the model again."):
            config = transformers.AutoConfig.from_pretrained(directory, **options)
        if config.num_labels != 1:
            raise ConfigError(
                f"the reward model {directory} has {config.num_labels} labels, and a score is one number",
                remedy="Give a model that was trained with num_labels=1.",
            )
        auto = (
            transformers.AutoModelForSequenceClassification
            if self.kind == "orm"
            else transformers.AutoModelForTokenClassification
        )
        with library_errors(
            f"the reward model {directory} cannot be loaded",
            "Use a transformers classifier with safetensors weights, saved with its own config.json.",
        ):
            model, report = auto.from_pretrained(
                directory,
                config=config,
                dtype=self.dtype,
                use_safetensors=True,
                attn_implementation=exact_attention(config),
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are refused below, by name
                **options,
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(directory, use_fast=True, **options)
        check_weights(report, f"the reward model {directory}")
        self._model: Any = model.to(device).eval()
        self._device = device
        self._encoding = ControlEncoding(tokenizer)
        limits = (tokenizer.model_max_length, getattr(config.get_text_config(), "max_position_embeddings", None))
        self._context: int = min(limit for limit in limits if limit is not None)
        with library_errors(f"the reward model {directory} cannot score a text", "Try it in transformers alone first."):
            self._before, self._after = self._special_tokens()
            self.judge(_PROBE, _PROBE, ending="", step_ends=None if self.kind == "orm" else (0,))

    def judge(self, prompt: str, completion: str, *, ending: str, step_ends: Sequence[int] | None) -> Judgement:
        """Scores of a completion, which follows its prompt; `ending` is the text of the stop token that ended it.

        An ORM's score is its logit. A PRM's is the logistic function, within 0..1, of its logit at the last token of
        each step; prompt and steps are encoded one by one, as TRL trains such models. What is beyond the model's
        context is not read, and steps that end there have no score. `MachineError` for a score that is not a number.
        """
        if self.kind == "orm":
            known = ending if ending in self._encoding.control.texts else ""
            ids = [*self._prompt(prompt), *self._encode(completion, known)]
            return Judgement(outcome=self._finite(self._logits(self._ended(ids))[-1]))
        ids, places = self._prompt(prompt), list[int]()
        for start, end in zip((0, *(end + 1 for end in step_ends or ())), step_ends or (), strict=False):
            ids += self._encode(completion[start : end + 1], "")
            places.append(len(ids) - 1)
        if not places:
            return Judgement()
        logits = self._logits(self._ended(ids))
        found = [self._finite(logits[place]) for place in places if place < len(logits)]
        scores = tuple(1.0 / (1.0 + math.exp(min(700.0, -logit))) for logit in found)
        return Judgement(steps=scores, ends=tuple(step_ends or ())[: len(found)])

    def _logits(self, ids: Sequence[int]) -> list[float]:
        """Logits of a PRM by token, or the one of an ORM."""
        if len(ids) > self._context:
            self.cut += 1
            ids = ids[: self._context]
        row = torch.tensor([list(ids)], device=self._device)
        with torch.no_grad():
            logits = self._model(input_ids=row, attention_mask=torch.ones_like(row)).logits
        found: list[float] = logits.float().flatten().tolist()
        return found

    def _prompt(self, text: str) -> list[int]:
        """Tokens of the prompt, in which control tokens are read as such, after those that begin a text."""
        ids = self._encode("", text)
        return ids if ids[: len(self._before)] == self._before else [*self._before, *ids]

    def _ended(self, ids: list[int]) -> list[int]:
        """The tokens of a text with those that end one."""
        has_them = ids[max(0, len(ids) - len(self._after)) :] == self._after
        return ids if has_them else [*ids, *self._after]

    def _encode(self, plain: str, written: str) -> list[int]:
        """Tokens of plain text, and of what the run has written after it, in which control tokens are read as such."""
        with library_panics():
            (ids,) = self._encoding.encode([self._encoding.control.between(("", written), plain)], special=False)
        return ids

    def _special_tokens(self) -> tuple[list[int], list[int]]:
        """Tokens that the tokenizer puts before and after a text."""
        (bare,), (framed,) = (self._encoding.encode([_PROBE], special=special) for special in (False, True))
        for start in range(len(framed) - len(bare) + 1):
            if bare and framed[start : start + len(bare)] == bare:
                return framed[:start], framed[start + len(bare) :]
        return framed, []

    def _finite(self, score: float) -> float:
        if not abs(score) <= _MOST:
            raise MachineError(
                f"the reward model gave a completion the score {score:g}",
                remedy=f"Scores must lie within ±{_MOST:,.0f}. Look for damaged weights, or a number type that is too "
                "narrow for the model.",
            )
        return score
