"""The small model made from nothing and saved as an ordinary Hugging Face directory with a model card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from p2prl.models.small_models.architecture import random_small_model
from p2prl.models.small_models.bpe_tokenizer import small_tokenizer
from p2prl.models.small_models.faulty_demonstrations import SMALL_MODEL_RECIPE, warm_start_small_model
from p2prl.models.small_models.warm_start import WarmstartConfig
from p2prl.tasks.task_spec import Demonstration

_CARD = """\
---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---
# p2prl-small-{task}

A Qwen3 model of {parameters:,} parameters with a vocabulary of {vocabulary:,}, made by p2prl without any download:
random weights, then {steps} updates of supervised training on demonstrations of `{task}` that p2prl generates. Many of
the demonstrations are wrong on purpose, so that reinforcement learning has something to correct. It knows nothing else.

Tokens that no demonstration contains share one embedding. Prompts follow the chat template.
"""


def make_small_model(
    directory: Path,
    task: str,
    demonstration: Demonstration,
    *,
    on_progress: Callable[[str, float], None],
    seed: int = 0,
    config: WarmstartConfig = SMALL_MODEL_RECIPE,
) -> None:
    """Train the tokenizer, warm-start the model on `demonstration` and save both in `directory`, which may not exist.

    `task` names the demonstrations in the model card; `on_progress` gets a stage and the share of it that is done.
    """
    on_progress("training the tokenizer", 0.0)
    tokenizer = small_tokenizer()
    loaded = random_small_model(tokenizer, seed=seed)
    warm_start_small_model(
        loaded,
        demonstration,
        seed=seed,
        config=config,
        on_step=lambda step, _: on_progress("warm start on demonstrations", step / config.steps),
    )
    directory.mkdir(parents=True, exist_ok=True)
    loaded.model.save_pretrained(directory, safe_serialization=True)
    tokenizer.save_pretrained(directory)
    card = _CARD.format(
        task=task, parameters=loaded.model.num_parameters(), vocabulary=len(tokenizer), steps=config.steps
    )
    (directory / "README.md").write_text(card)
