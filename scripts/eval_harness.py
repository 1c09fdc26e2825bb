"""Measure a run's checkpoint with lm-evaluation-harness, beside p2prl's own greedy accuracy on the same prompts.

    pip install lm_eval
    python -m scripts.eval_harness runs/my-run --model runs/my-run/export/step-200

Writes a task folder for the harness (YAML, prompts as JSON lines, and a function that scores with the run's own
scorers), runs it offline on the model directory, and compares. A checkpoint that any other program loads with the same
results is what `p2prl export` promises. The prompts are the token ids that p2prl prompts with
(`scripts/harness_model.py`). The folder stays and can be given to the harness by hand:
`python -m scripts.harness_model --model p2prl --model_args pretrained=DIR --tasks p2prl_TASK --include_path FOLDER`.
Exits 1 when the two differ by more than a few prompts in a hundred.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any

from p2prl.cli.commands.measure_checkpoint import Measurement, measure_checkpoint
from p2prl.config.new_run import RunFolder, open_run
from p2prl.config.run_data import folder_data
from p2prl.errors import ConfigError
from p2prl.models.base_model.pretrained import load_pretrained
from p2prl.models.evaluation.pass_evaluation import EvaluationSet, evaluation_sets
from p2prl.models.groups.group_work import GroupWork
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.tasks.evaluation_report import pass_threshold
from p2prl.tasks.row_scorer import RowScorer
from p2prl.tasks.scorers.build import build_scorer, runs_third_party_code
from p2prl.tasks.task_registry import task_by_name
from scripts.harness_model import prompt_text

_TOLERANCE = 0.03
"""Largest difference of the two accuracies. The harness pads prompts of a batch on the left, which changes the last
bits of logits, and cannot say that a completion was cut off."""

_YAML = """\
task: p2prl_{task}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {prompts}
test_split: test
output_type: generate_until
doc_to_text: "{{{{ids}}}}"
doc_to_target: ""
target_delimiter: ""
generation_kwargs:
  until: []
  do_sample: false
  max_gen_toks: {max_new_tokens}
process_results: !function scoring.process_results
metric_list:
  - metric: greedy_pass
    aggregation: mean
    higher_is_better: true
"""

_SCORING = """\
from scripts.eval_harness import passes


def process_results(doc, results):
    return {"greedy_pass": float(passes(doc, results[0]))}
"""


def passes(doc: dict[str, Any], completion: str) -> bool:
    """Whether a completion of one of the written prompts passes, by the run's own scorers."""
    if doc["scoring"]:
        score = _scorer(doc["scoring"]).score(json.loads(doc["row"]), completion, True)
        return score is not None and score > pass_threshold(doc["scoring"])
    return task_by_name(doc["task"]).task.score(doc["raw"], completion, True).reward > pass_threshold(None)


@lru_cache
def _scorer(scoring: str) -> RowScorer:
    return build_scorer(scoring, None)


def write_tasks(folder: Path, run: RunFolder, model: Path, *, prompts: int) -> list[str]:
    """Write the harness's tasks of all tasks of the run; returns their names. `model` is a directory."""
    with ExitStack() as resources:
        data = folder_data(run)
        loaded = load_pretrained(str(model), dtype="float32")
        codec = TextCodec(loaded.tokenizer, loaded.model)
        work = GroupWork(run.manifest, run.run, codec, data.tasks, data.start_scorers(), environments=data.environments)
        resources.callback(work.close)
        sets = evaluation_sets(work, run.manifest, run.run, prompts=prompts, samples=0)
    for each in sets:
        held_out = data.tasks[each.task].held_out if each.task in data.tasks else None
        _write_task(folder, run, each, None if held_out is None else held_out.rows)
    return [each.task for each in sets]


def _write_task(folder: Path, run: RunFolder, chosen: EvaluationSet, rows: Any) -> None:
    """Write the harness's task of one task of the run. `rows` are its held-out rows; None for a procedural task."""
    manifest = run.manifest
    scoring = next((data.scoring for data in manifest.data_sets if data.task == chosen.task), "")
    if scoring and runs_third_party_code(scoring):
        raise ConfigError(
            f"the scorer of {chosen.task} runs code that p2prl did not bring",
            remedy="Use `p2prl eval`, which confines it.",
        )
    before, after = manifest.prompt_frame
    folder.mkdir(parents=True, exist_ok=True)
    prompts = folder / f"{chosen.task}.jsonl"
    with prompts.open("w") as file:
        for prompt in chosen.prompts:
            assignment = prompt.assignment
            row = None if assignment.row is None else rows.row(assignment.row)
            doc = {
                "task": chosen.task,
                "prompt": before + assignment.prompt + after if row is None else row["rendered"],
                "ids": prompt_text(assignment.prompt_ids),
                "raw": assignment.prompt,
                "row": json.dumps(row),
                "scoring": scoring,
            }
            file.write(json.dumps(doc) + "\n")
    text = _YAML.format(task=chosen.task, prompts=prompts, max_new_tokens=manifest.sampling.max_new_tokens)
    (folder / f"{chosen.task}.yaml").write_text(text)
    (folder / "scoring.py").write_text(_SCORING)


def harness_accuracy(folder: Path, model: Path, tasks: Sequence[str], *, python: str) -> dict[str, float]:
    """Accuracy by task, as the harness reports it."""
    results = folder / "results"
    command = [python, "-m", "scripts.harness_model", "--model", "p2prl"]
    command += ["--model_args", f"pretrained={model},dtype=float32", "--device", "cpu", "--batch_size", "64"]
    command += ["--include_path", str(folder), "--output_path", str(results)]
    command += ["--tasks", ",".join(f"p2prl_{task}" for task in tasks)]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    subprocess.run(command, check=True, env={**os.environ, **offline, "PYTHONPATH": os.pathsep.join(paths)})
    newest = max(results.rglob("results_*.json"), key=lambda path: path.stat().st_mtime)
    found = json.loads(newest.read_text())["results"]
    return {task: float(found[f"p2prl_{task}"]["greedy_pass,none"]) for task in tasks}


def main() -> int:
    """Measure, compare, print."""
    arguments = _parser().parse_args()
    run = open_run(arguments.run)
    model = (arguments.model or run.newest_weights()).resolve()
    folder = (arguments.out or arguments.run / "lm-eval").resolve()
    wanted = Measurement(prompts=arguments.prompts, samples=0)
    own = measure_checkpoint(run, model, wanted, on_progress=lambda *_: None, on_notice=print)
    tasks = write_tasks(folder, run, model, prompts=arguments.prompts)
    theirs = harness_accuracy(folder, model, tasks, python=arguments.python)
    for task, accuracy in theirs.items():
        print(f"{task}: lm-evaluation-harness {accuracy:.4f}, p2prl {own[task]['greedy_pass']['rate']:.4f}")
    return int(any(abs(theirs[task] - own[task]["greedy_pass"]["rate"]) > _TOLERANCE for task in tasks))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--model", type=Path, help="a model directory; default: the run's newest checkpoint")
    parser.add_argument("--prompts", type=int, default=200, help="prompts of each task")
    parser.add_argument("--out", type=Path, help="folder for the harness's task; default: lm-eval in the run folder")
    parser.add_argument("--python", default=sys.executable, help="the Python that has lm_eval")
    return parser


if __name__ == "__main__":
    sys.exit(main())
