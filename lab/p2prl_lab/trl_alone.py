"""TRL's GRPOTrainer on a run's own model, prompts and rewards, in one process: what a swarm's price is held against.

    python -m p2prl_lab.trl_alone RUN --updates 200

RUN is a new run folder. Every update prints a JSON line: `step`, `reward` (mean of its completions), `cpu_s` (of this
process since its start). Completions, groups, learning rate, temperature and length are the run's; all else is TRL's
default. TRL is not among the pinned packages: `pip install --no-deps -c constraints.txt trl datasets pandas pyarrow
dill multiprocess xxhash`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from p2prl.config.new_run import open_run
from p2prl.config.run_data import folder_data
from p2prl.errors import ConfigError
from p2prl.models.base_model.pretrained import load_pretrained
from p2prl.models.groups.group_work import GroupWork, SlotAssignment
from p2prl.models.hardware.device_choice import choose_device, use_threads
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.protocol.digests import digest


def main() -> None:
    """Train, and print a line for each update."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    use_threads(1)
    # What libraries print must not come between the lines.
    lines = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        train(options.run, options.updates, options.seed, lines)


def train(run: Path, updates: int, seed: int, lines: Any) -> None:
    """Train the first weights of `run` for `updates` updates."""
    from transformers import TrainerCallback

    trl, datasets = importlib.import_module("trl"), importlib.import_module("datasets")
    folder = open_run(run)
    manifest, settings = folder.manifest, folder.settings
    loaded = load_pretrained(str(run / "model"), device=choose_device("cpu"), dtype=manifest.engine_dtype)
    data = folder_data(folder)
    codec = TextCodec(loaded.tokenizer, loaded.model)
    work = GroupWork(manifest, folder.run, codec, data.tasks, data.start_scorers(None), environments=data.environments)
    groups, sampling = settings.learner.groups_per_update, manifest.sampling
    prompts = _prompts(work, groups * updates, seed)

    def reward(completion_ids: Sequence[Sequence[int]], slot: Sequence[int], **_: Any) -> list[float]:
        """One completion after the other, each with the slot of its prompt."""
        return [
            work.successes(prompts[number], [tuple(map(int, ids))])[0]
            for ids, number in zip(completion_ids, slot, strict=True)
        ]

    class Printer(TrainerCallback):  # type: ignore[misc]  # transformers' is untyped
        """Prints each update's line."""

        def on_log(self, *about: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
            """`about` is the arguments, the state and the control."""
            if logs is not None and "reward" in logs:
                line = {"step": about[1].global_step, "reward": logs["reward"], "cpu_s": time.process_time()}
                print(json.dumps(line), file=lines, flush=True)

    optimizer = settings.learner.optimizer
    with tempfile.TemporaryDirectory() as scratch:
        trainer = trl.GRPOTrainer(
            model=loaded.model,
            processing_class=loaded.tokenizer,
            reward_funcs=reward,
            train_dataset=datasets.Dataset.from_list(
                [{"prompt": _text(loaded.tokenizer, each), "slot": number} for number, each in enumerate(prompts)]
            ),
            args=trl.GRPOConfig(
                output_dir=scratch,
                use_cpu=True,
                bf16=False,
                report_to=[],
                save_strategy="no",
                logging_steps=1,
                disable_tqdm=True,
                seed=seed,
                max_steps=updates,
                per_device_train_batch_size=groups * sampling.group_size,
                num_generations=sampling.group_size,
                max_completion_length=sampling.max_new_tokens,
                temperature=sampling.temperature,
                learning_rate=optimizer.learning_rate,
                lr_scheduler_type="constant_with_warmup",
                warmup_steps=optimizer.warmup_updates,
                gradient_checkpointing=False,
            ),
            callbacks=[Printer()],
        )
        trainer.train()
    work.close()


def _prompts(work: GroupWork, count: int, seed: int) -> list[SlotAssignment]:
    """As many work slots as the training takes, of a volunteer that nobody is."""
    nobody = digest("p2prl/trl-alone/v1", seed.to_bytes(8, "little"))
    return [work.assign(beacon=nobody, peer=nobody, slot=slot) for slot in range(count)]


def _text(tokenizer: Any, assignment: SlotAssignment) -> str:
    """The prompt as text that TRL encodes to the same tokens: a tokenizer may put its first token there by itself."""
    for plain in (False, True):
        text: str = tokenizer.decode(assignment.prompt_ids, skip_special_tokens=plain)
        if tuple(tokenizer(text)["input_ids"]) == assignment.prompt_ids:
            return text
    raise ConfigError(
        f"TRL would encode the prompt {text!r} to other tokens than the run", remedy="Choose another preset."
    )


if __name__ == "__main__":
    main()
