"""`p2prl bench spread`."""

from __future__ import annotations

import time
from pathlib import Path

from p2prl.cli.console import emit, progress, say
from p2prl.cli.listed import listed, numbers
from p2prl.errors import P2PRLError


def bench_spread(
    *,
    schemes: str,
    peers: str,
    churn: str,
    mib: int,
    learner_mbit: float,
    links: Path | None,
    out: Path,
    seed: int,
    as_json: bool,
) -> None:
    """Compare schemes; lists are separated by commas."""
    from p2prl.bench.spread.benchmark import (
        MIB,
        SpreadConfig,
        as_documents,
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
        links=links,
        seed=seed,
    )
    with progress("benchmark", quiet=as_json) as tell:
        rows = run_spread(config, tell)
    write_results(rows, out)
    verdicts = [verdict for verdict in judge(rows) if verdict.met is not None]
    if as_json:
        emit(
            {
                "results": as_documents(rows),
                "demands": [
                    {"demand": v.demand, "bound": v.bound, "measured": v.measured, "met": v.met} for v in verdicts
                ],
                "links": "mixed home links" if links is None else str(links),
                "size_bytes": config.size_bytes,
                "chunk_bytes": config.chunk_bytes,
                "learner_mbit": learner_mbit,
                "seed": seed,
                "wall_s": time.monotonic() - began,
            }
        )
    else:
        for line in as_markdown(rows).splitlines():
            say(line, whole=True)
        for verdict in verdicts:
            answer = "met" if verdict.met else "NOT MET"
            say(f"{answer:8} {verdict.demand}: {verdict.measured:.3f} (at most {verdict.bound:g})")
        say(f"written to {out}: spread.json, spread.md, spread.png")
    failed = sum(not verdict.met for verdict in verdicts)
    if failed:
        raise P2PRLError(
            f"{failed} of {len(verdicts)} demands are not met", remedy="See docs/benchmarks/spread.md for the cases."
        )
