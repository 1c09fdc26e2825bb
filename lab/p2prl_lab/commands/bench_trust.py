"""`p2prl bench trust`: what cheats are paid, what choosers gain, what honest work is lost, what checks cost."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2prl.cli.benchmark import Benchmark, listed, numbers, print_table
from p2prl.cli.options import AsJson, Seed
from p2prl.cli.views.console import emit, say
from p2prl.cli.views.progress_bar import progress_bar

if TYPE_CHECKING:
    from p2prl_lab.bench.trust.benchmark import TrustConfig

_ALL = "all"


def bench_trust(
    part: Annotated[
        str,
        typer.Option(
            "--part",
            help="Parts, comma-separated: attacks, false_rejects, choosers, honest_bill, liars, floods, answers, cost.",
        ),
    ] = _ALL,
    dtypes: Annotated[
        str, typer.Option("--dtypes", help="Number types that engines compute in, comma-separated.")
    ] = "float32,bfloat16",
    tokens: Annotated[
        str, typer.Option("--tokens", help="Tokens of a group, comma-separated: 8, 40, 512, 4096, 16384.")
    ] = "8,40,512,4096,16384",
    groups: Annotated[int, typer.Option("--groups", help="Synthetic groups of each case.")] = 300,
    attacks: Annotated[str, typer.Option("--attacks", help="Attacks by name, comma-separated.")] = _ALL,
    attack_groups: Annotated[
        int, typer.Option("--attack-groups", help="Groups of a real model for each attack, at most.")
    ] = 20,
    cell_tokens: Annotated[
        int, typer.Option("--cell-tokens", help="Tokens of these groups, at most; 0 for no limit.")
    ] = 32_768,
    floods: Annotated[
        str,
        typer.Option(
            "--floods",
            help="Floods, comma-separated: fabricated, newcomers, duplicates, evidence, verdicts, headers, statements.",
        ),
    ] = _ALL,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for the results; a rerun resumes where it stopped.")
    ] = Path("runs/bench-trust"),
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Attack a learner, and measure what it credits, what honest work it rejects, and what floods and checks cost."""
    from p2prl.models.hardware.device_choice import use_threads
    from p2prl_lab.bench.trust.benchmark import PARTS, TrustConfig, run_trust
    from p2prl_lab.bench.trust.charts import draw_charts
    from p2prl_lab.bench.trust.floods import FLOODS
    from p2prl_lab.bench.trust.forged_groups import ATTACKS
    from p2prl_lab.bench.trust.report import as_markdown

    began = time.monotonic()
    config: TrustConfig = TrustConfig(
        parts=PARTS if part == _ALL else listed(part),
        dtypes=listed(dtypes),
        tokens=numbers(tokens, int, "--tokens"),
        groups=groups,
        attacks=tuple(ATTACKS) if attacks == _ALL else listed(attacks),
        attack_groups=attack_groups,
        cell_tokens=cell_tokens,
        floods=tuple(FLOODS) if floods == _ALL else listed(floods),
        seed=seed,
    )
    use_threads(1)  # matrix products this small are slower on more threads
    with progress_bar("benchmark", quiet=as_json) as on_progress:
        rows = run_trust(config, out, on_progress=on_progress)
    document = {**rows, "seed": seed, "wall_s": round(time.monotonic() - began, 1)}
    (out / "trust.json").write_text(json.dumps(document) + "\n", encoding="utf-8")
    text = as_markdown(rows)
    (out / "trust.md").write_text(text + "\n", encoding="utf-8")
    drawn = draw_charts(rows, out)
    if as_json:
        emit(document)
    else:
        print_table(text)
        say(f"written to {out}: {', '.join(['results.jsonl', 'trust.json', 'trust.md', *(f.name for f in drawn)])}")


BENCHMARK = Benchmark(
    bench_trust,
    examples=("p2prl bench trust --part attacks --dtypes float32 --tokens 8,40",),
)
