"""`p2prl bench spread`: schemes for distributing weights, compared on simulated home links."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2prl.cli.benchmark import Benchmark, listed, numbers, print_table, verdict_line
from p2prl.cli.options import AsJson, Seed
from p2prl.cli.views.console import emit, say
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.errors import P2PRLError

if TYPE_CHECKING:
    from p2prl_lab.bench.spread.benchmark import SpreadConfig, SpreadVerdict
    from p2prl_lab.bench.spread.outcome import SpreadRow


def bench_spread(
    schemes: Annotated[
        str, typer.Option("--schemes", help="Schemes to compare: star, chain, tree, relays, bittorrent, p2prl.")
    ] = "star, chain, tree, relays, bittorrent, p2prl",
    peers: Annotated[str, typer.Option("--peers", help="Swarm sizes, comma-separated.")] = "8,64,512",
    churn: Annotated[str, typer.Option("--churn", help="Shares of peers that die, comma-separated.")] = "0,0.3",
    mib: Annotated[int, typer.Option("--mib", help="Size of the blob, MiB.")] = 128,
    learner_mbit: Annotated[float, typer.Option("--learner-mbit", help="The learner's uplink, Mbit/s.")] = 100.0,
    links: Annotated[
        str,
        typer.Option(
            "--links",
            help="Links, comma-separated: home, lognormal, poor, poorest, mixed, or a file with one link per line, "
            "`DOWN UP [SHARE]`, Mbit/s.",
        ),
    ] = "home",
    out: Annotated[Path, typer.Option("--out", help="Folder for the results.")] = Path("runs/bench-spread"),
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Distribute weights over simulated home links and compare with the lower bound."""
    from p2prl_lab.bench.spread.benchmark import (
        MIB,
        SpreadConfig,
        as_markdown,
        judge,
        run_spread,
        write_results,
    )

    began = time.monotonic()
    config = SpreadConfig(
        schemes=listed(schemes),
        peers=numbers(peers, int, "--peers"),
        churn=numbers(churn, float, "--churn"),
        size_bytes=mib * MIB,
        learner_mbit=learner_mbit,
        links=listed(links),
        seed=seed,
    )
    with progress_bar("benchmark", quiet=as_json) as on_progress:
        rows = run_spread(config, on_progress)
    write_results(rows, out)
    verdicts = [verdict for verdict in judge(rows) if verdict.met is not None]
    if as_json:
        emit(_document(config, rows, verdicts, wall_s=time.monotonic() - began))
    else:
        print_table(as_markdown(rows))
        for verdict in verdicts:
            say(verdict_line(verdict.demand, verdict.bound, verdict.measured, verdict.met))
        say(f"written to {out}: spread.json, spread.md, spread.png")
    failed = sum(not verdict.met for verdict in verdicts)
    if failed:
        raise P2PRLError(
            f"{failed} of {len(verdicts)} criteria are not met", remedy="See docs/benchmarks/spread.md for the cases."
        )


def _document(
    config: SpreadConfig, rows: Sequence[SpreadRow], verdicts: Sequence[SpreadVerdict], *, wall_s: float
) -> dict[str, object]:
    from p2prl_lab.bench.spread.benchmark import as_documents

    return {
        "results": as_documents(rows),
        "demands": [{"demand": v.demand, "bound": v.bound, "measured": v.measured, "met": v.met} for v in verdicts],
        "links": ", ".join(config.links),
        "size_bytes": config.size_bytes,
        "chunk_bytes": config.chunk_bytes,
        "learner_mbit": config.learner_mbit,
        "seed": config.seed,
        "wall_s": wall_s,
    }


BENCHMARK = Benchmark(
    bench_spread,
    examples=("p2prl bench spread --schemes p2prl,star --peers 64 --mib 16",),
)
