"""The spread benchmark: time until every peer has a blob, by the product's relay and five other schemes.

`docs/benchmarks/spread.md` describes the links, the schemes and the committed figures.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from p2prl.errors import ConfigError, MachineError
from p2prl.protocol.manifests import chunk_bytes_for
from p2prl_lab.bench.spread.bittorrent import BitTorrent
from p2prl_lab.bench.spread.home_links import Population, links_of, populate
from p2prl_lab.bench.spread.outcome import Outcome, SpreadRow, Tell, row_of
from p2prl_lab.bench.spread.product_relay import spread_by_relay
from p2prl_lab.bench.spread.relay_servers import RelayServers
from p2prl_lab.bench.spread.tree_schemes import Tree, chain, fast_tree, star

MIB = 1024 * 1024

SCHEMES: dict[str, Callable[[Population, Tell], Outcome]] = {
    "star": lambda population, tell: Tree(population, star(population)).run(tell),
    "chain": lambda population, tell: Tree(population, chain(population)).run(tell),
    "tree": lambda population, tell: Tree(population, fast_tree(population)).run(tell),
    "relays": lambda population, tell: RelayServers(population).run(tell),
    "bittorrent": lambda population, tell: BitTorrent(population).run(tell),
    "p2prl": spread_by_relay,
}
"""Name → function that runs the scheme. All schemes get the same links, deaths and learner."""

_MOST_PEERS = 4_096
"""Largest swarm: takes minutes to simulate, more would take hours."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpreadConfig:
    """Schemes and swarms to compare."""

    schemes: tuple[str, ...] = tuple(SCHEMES)
    peers: tuple[int, ...] = (8, 64, 512)
    """Swarm sizes, each simulated separately."""
    churn: tuple[float, ...] = (0.0, 0.3)
    """Shares of peers that die silently, each at a uniform time within the lower bound."""
    size_bytes: int = 128 * MIB
    learner_mbit: float = 100.0
    """The learner's uplink."""
    links: tuple[str, ...] = ("home",)
    """Named sets of links (`home_links.LINK_SETS`), or files of link kinds."""
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [scheme for scheme in self.schemes if scheme not in SCHEMES]
        if unknown or not self.schemes:
            name = unknown[0] if unknown else ""
            raise ConfigError(f"{name[:40]!r} is not a scheme", remedy=f"Choose from {', '.join(SCHEMES)}.")
        if not self.links:
            raise ConfigError("no links are named", remedy="Write `--links home,lognormal`.")
        if not self.peers or not all(1 <= count <= _MOST_PEERS for count in self.peers):
            raise ConfigError("the number of peers must be 1 to 4096", remedy="Write `--peers 8,64,512`.")
        if not self.churn or not all(0.0 <= share <= 0.9 for share in self.churn):
            raise ConfigError("the share of peers that die must be 0 to 0.9", remedy="Write `--churn 0,0.3`.")
        if not MIB <= self.size_bytes <= 16_384 * MIB:
            raise ConfigError("the blob must have 1 to 16384 MiB", remedy="Write `--mib 128`.")
        if not (math.isfinite(self.learner_mbit) and 0 < self.learner_mbit <= 1e5):
            raise ConfigError(
                "the learner's uplink must be above 0 and at most 100000 Mbit/s", remedy="Write `--learner-mbit 100`."
            )

    @property
    def chunk_bytes(self) -> int:
        """Chunk size, as the product chooses it."""
        return chunk_bytes_for(self.size_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class SpreadVerdict:
    """A bound on the product's relay and its measured figure; `met` is None where no row measures it."""

    demand: str
    bound: float
    measured: float | None

    @property
    def met(self) -> bool | None:
        return None if self.measured is None else self.measured <= self.bound


def run_spread(config: SpreadConfig, on_progress: Callable[[str, float], None]) -> list[SpreadRow]:
    """Every scheme in every swarm. The same seed gives the same rows."""
    cases = [(links, peers, churn) for links in config.links for peers in config.peers for churn in config.churn]
    drawers = {name: links_of(name) for name in config.links}
    rows: list[SpreadRow] = []
    for links, peers, churn in cases:
        population = populate(
            drawers[links],
            peers=peers,
            size_bytes=config.size_bytes,
            chunk_bytes=config.chunk_bytes,
            source_mbit=config.learner_mbit,
            churn=churn,
            seed=config.seed,
        )
        for scheme in config.schemes:
            stage, begun = f"{scheme}, {peers} peers on {links} links, {churn:.0%} die", len(rows)

            def tell(done: float, stage: str = stage, begun: int = begun) -> None:
                on_progress(stage, (begun + done) / (len(cases) * len(config.schemes)))

            cpu_before = time.process_time()
            outcome = SCHEMES[scheme](population, tell)
            cpu_s = time.process_time() - cpu_before
            rows.append(row_of(scheme, population, churn, outcome, links=links, cpu_s=cpu_s))
    return rows


def judge(rows: Iterable[SpreadRow]) -> list[SpreadVerdict]:
    """Verdicts on the product's bounds, using the worst figure over the relevant rows."""
    ours = [row for row in rows if row.scheme == "p2prl"]
    calm = [row for row in ours if row.n >= 64 and not row.churn]
    churning = [row for row in ours if row.n >= 64 and row.churn >= 0.3]
    small = [row for row in ours if row.n == 8 and not row.churn]

    def worst(found: list[SpreadRow], figure: Callable[[SpreadRow], float]) -> float | None:
        return max(map(figure, found), default=None)

    figures = [
        ("t95 over its bound, 64 peers and more", 1.20, worst(calm, lambda row: row.t95_over)),
        ("t100 over its bound, 64 peers and more", 1.25, worst(calm, lambda row: row.t100_over)),
        ("t95 over its bound when 30 % die, 64 peers and more", 1.20, worst(churning, lambda row: row.t95_over)),
        ("t100 over its bound, 8 peers", 1.35, worst(small, lambda row: row.t100_over)),
        ("copies sent by the learner", 3.0, worst(ours, lambda row: row.source_copies)),
        ("wasted share of bytes", 0.01, worst(ours, lambda row: row.waste_share)),
        ("share of survivors not finished", 0.0, worst(ours, lambda row: 1.0 - row.survivors_finished)),
    ]
    return [SpreadVerdict(demand=demand, bound=bound, measured=measured) for demand, bound, measured in figures]


def as_documents(rows: Iterable[SpreadRow]) -> list[dict[str, Any]]:
    """JSON rows; a time that was never reached is null."""
    documents = []
    for row in rows:
        fields = {**asdict(row), "t95_over_bound": row.t95_over, "t100_over_bound": row.t100_over}
        documents.append(
            {key: None if isinstance(value, float) and math.isinf(value) else value for key, value in fields.items()}
        )
    return documents


def as_markdown(rows: Iterable[SpreadRow]) -> str:
    """The table of the documentation."""
    lines = [
        "| links | peers | die | scheme | t50 s | t95 s | t100 s | bound s | t95/b | t100/b | copies | waste | done |",
        "|---|---:|---:|---|" + "---:|" * 9,
    ]
    for row in rows:
        times = (_number(value, 1) for value in (row.t50, row.t95, row.t100, row.lower_bound))
        over = (_number(value, 2) for value in (row.t95_over, row.t100_over, row.source_copies))
        lines.append(
            f"| {row.links} | {row.n} | {row.churn:.0%} | {row.scheme} | {' | '.join(times)} | {' | '.join(over)} "
            f"| {row.waste_share:.2%} | {row.survivors_finished:.0%} |"
        )
    return "\n".join(lines)


def write_results(rows: list[SpreadRow], folder: Path) -> None:
    """`spread.json`, `spread.md` and `spread.png`. Raises `MachineError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "spread.json").write_text(json.dumps(as_documents(rows), indent=1) + "\n")
        (folder / "spread.md").write_text(as_markdown(rows) + "\n")
        plot(rows, folder / "spread.png")
    except OSError as error:
        raise MachineError(f"cannot write in {folder}: {error}", remedy="Choose another folder with --out.") from error


def plot(rows: list[SpreadRow], path: Path) -> None:
    """Draw t95 over its bound against the size of the swarm, one panel for each set of links and share of deaths."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    churns, sets = sorted({row.churn for row in rows}), list(dict.fromkeys(row.links for row in rows))
    panels = [(links, churn) for links in sets for churn in churns]
    figure, axes = pyplot.subplots(
        len(sets),
        len(churns),
        figsize=(4.8 * len(churns), 3.8 * len(sets)),
        sharey=True,
        squeeze=False,
        constrained_layout=True,
    )
    for axis, (links, churn) in zip(axes.flat, panels, strict=True):
        shown = [row for row in rows if row.links == links and row.churn == churn]
        for scheme in dict.fromkeys(row.scheme for row in rows):
            found = sorted((row.n, row.t95_over) for row in shown if row.scheme == scheme)
            finite = [(n, over) for n, over in found if math.isfinite(over)]
            axis.plot(
                [n for n, _ in finite],
                [over for _, over in finite],
                marker="o",
                label=scheme,
                linewidth=2.4 if scheme == "p2prl" else 1.2,
            )
        axis.axhline(1.0, color="black", linestyle="--", linewidth=0.8)
        axis.set(xscale="log", yscale="log", xlabel="peers", title=f"{Path(links).name}, {churn:.0%} of peers die")
        sizes = sorted({row.n for row in rows})
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.minorticks_off()
        axis.spines[["top", "right"]].set_visible(False)
    axes.flat[0].set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    axes.flat[0].set_ylabel("t95 over the lower bound")
    axes.flat[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _number(value: float, digits: int) -> str:
    return "never" if math.isinf(value) else f"{value:.{digits}f}"
