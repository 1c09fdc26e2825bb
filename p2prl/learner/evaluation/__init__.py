"""Evaluation inside a run: published policies measured on prompts that are never trained on.

* `config` — the settings: the `[evaluation]` table of run.toml.
* `evaluation_plan` — which version is measured next, and when a slice of it may run. Pure.
* `results_file` — `evaluations.jsonl`: one line per version.
* `evaluations` — the evaluation in progress, a slice at a time on the replay stage.
"""
