"""Evaluation inside a run: published policies measured on prompts that are never trained on.

* `evaluation_plan` — the settings (`[evaluation]` of run.toml), which version is next, and when a slice may run. Pure.
* `results_file` — `evaluations.jsonl`: one line per version.
* `evaluations` — the evaluation in progress, a slice at a time on the replay stage.
"""
