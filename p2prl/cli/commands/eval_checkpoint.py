"""Measure a checkpoint, for `p2prl eval` and the demo. Imports torch, so import this module only when needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from p2prl.config.run_settings import RunFolder
from p2prl.models.device import choose_device
from p2prl.models.evaluation import Evaluation, evaluate
from p2prl.models.group_work import GroupWork
from p2prl.models.policy_model import PolicyModel
from p2prl.models.pretrained import load_pretrained
from p2prl.models.text_codec import TextCodec
from p2prl.models.transformers_sampler import TransformersSampler
from p2prl.models.weight_layout import TORCH_DTYPES, flatten, layout_of


def evaluate_checkpoint(
    folder: RunFolder,
    checkpoint: Path,
    *,
    prompts: int,
    seed: int,
    greedy: bool = False,
    device: str = "cpu",
    on_progress: Callable[[str, float], None],
) -> Evaluation:
    """Measure the reward of a model directory on fresh prompts, with the run's weight and compute types."""
    manifest = folder.manifest
    loaded = load_pretrained(str(checkpoint), device=choose_device(device), dtype="float32")
    weights = flatten(loaded.model, layout_of(loaded.model, manifest.dtype))
    loaded.model.to(TORCH_DTYPES[manifest.engine_dtype])
    policy = PolicyModel(loaded.model, layout_of(loaded.model, manifest.dtype))
    policy.load(weights)
    work = GroupWork(folder.manifest, folder.run, TextCodec(loaded.tokenizer, loaded.model))
    return evaluate(
        TransformersSampler(policy),
        work,
        prompts=prompts,
        seed=seed,
        greedy=greedy,
        on_progress=lambda share: on_progress("sampling", share),
    )
