"""The comparison of recipes behind `p2prl bench rewards` and `p2prl bench ppo`: train, then print or write it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from p2prl.cli.benchmark import print_table
from p2prl.cli.views.console import emit, say
from p2prl.cli.views.progress_bar import progress_bar

if TYPE_CHECKING:
    from p2prl_lab.bench.comparison.benchmark import ComparisonConfig


def compare_recipes(config: ComparisonConfig, out: Path, *, name: str, shown: tuple[str, ...], as_json: bool) -> None:
    """Train every case of `config` and print or write the comparison; `shown` are the plotted figures."""
    from p2prl.models.hardware.device_choice import use_threads
    from p2prl_lab.bench.comparison.benchmark import run_comparison
    from p2prl_lab.bench.comparison.report import as_documents, as_markdown

    began = time.monotonic()
    use_threads(1)  # matrix products this small are slower on more threads
    with progress_bar("benchmark", quiet=as_json) as on_progress:
        rows = run_comparison(config, out, name=name, shown=shown, on_progress=on_progress)
    if as_json:
        emit(
            {
                "task": config.task,
                "updates": config.plan.updates,
                "learning_rate": config.plan.learning_rate,
                "max_new_tokens": config.environment().max_new_tokens,
                "seeds": list(config.seed_range),
                "results": as_documents(rows),
                "wall_s": time.monotonic() - began,
            }
        )
    else:
        print_table(as_markdown(rows))
        say(f"written to {out}: results.jsonl, {name}.csv, {name}.md, {name}.png")
