"""Links of the spread benchmark's peers, drawn by a seed from a named set or a file, and the times at which peers die.

A file of kinds is a text file with one `DOWNLOAD UPLOAD [SHARE]` per line, Mbit/s; `#` begins a comment.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from p2prl.errors import ConfigError

MBIT_BYTES = 125_000.0
REGIONS = 5

_OFFERED_SHARE = 0.8
"""Share of an uplink that volunteers offer."""

_MOST_UPLOAD_MBIT = 200.0
"""Most that even the largest home uplink offers."""

Kinds = tuple[tuple[float, float, float], ...]
"""Kinds of links: download, upload (Mbit/s), share of peers."""

Link = tuple[float, float, int]
"""Download and upload of one peer, Mbit/s, and its region."""

HOME_LINKS: Kinds = (
    (1000.0, 1000.0, 0.05),
    (500.0, 250.0, 0.10),
    (300.0, 50.0, 0.15),
    (100.0, 20.0, 0.40),
    (50.0, 10.0, 0.20),
    (25.0, 5.0, 0.10),
)
"""Mixed home links. Two thirds upload at less than 20 Mbit/s."""

_MEDIAN_MBIT = 10.0
_LEAST_MBIT, _MOST_MBIT = 0.25, 1000.0
"""A lognormal uplink is kept within these: the slowest line that is sold, and the fastest."""

_DOWN_OVER_UP = 5.0
_LEAST_DOWN_MBIT = 20.0
"""Downlinks of drawn uplinks: five times as fast, as most are sold, and 20 Mbit/s at least."""

_POOR = (20.0, 1.0)
_FIFTH = 0.2
_NEARLY_ALL = 0.95


@dataclass(frozen=True, slots=True)
class HomeLink:
    """One peer's rates, bytes/s, and its region."""

    upload_bytes_s: float
    download_bytes_s: float
    region: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Population:
    """Input of a scheme, the same for all schemes."""

    size_bytes: int
    chunk_bytes: int
    source: HomeLink
    peers: tuple[HomeLink, ...]
    deaths: dict[int, float]
    """Peer → seconds after the start at which it dies."""
    seed: int

    @property
    def chunks(self) -> int:
        """Chunks of the blob."""
        return -(-self.size_bytes // self.chunk_bytes)

    @property
    def survivors(self) -> list[int]:
        """Peers that never die."""
        return [peer for peer in range(len(self.peers)) if peer not in self.deaths]

    def lower_bound_s(self, share: float = 1.0) -> float:
        """Lower bound max(F/u_s, F/d, f·N·F/(u_s + Σu)) on the time until a `share` f of the survivors has finished.

        Kumar and Ross (HotWeb 2006) for f = 1; d is the slowest downlink among the best f. Peers that die count as
        uplinks to the end, so the bound holds whenever they die.
        """
        alive = [self.peers[peer] for peer in self.survivors]
        count = max(1, math.ceil(share * len(alive)))
        slowest = sorted((link.download_bytes_s for link in alive), reverse=True)[count - 1]
        uploads = self.source.upload_bytes_s + sum(link.upload_bytes_s for link in self.peers)
        return self.size_bytes * max(1 / self.source.upload_bytes_s, 1 / slowest, count / uploads)

    def star_s(self) -> float:
        """Least time in which the learner alone can serve every survivor: max(N·F/u_s, F/d_min)."""
        alive = [self.peers[peer] for peer in self.survivors]
        slowest = min(link.download_bytes_s for link in alive)
        return self.size_bytes * max(len(alive) / self.source.upload_bytes_s, 1 / slowest)


def read_links(path: Path) -> Kinds:
    """The kinds of links in a file. Raises `ConfigError` that names the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(LINK_SETS)
        raise ConfigError(f"cannot read {path}: {error}", remedy=f"Name {known}, or a file of links.") from error
    kinds = []
    for number, line in enumerate(lines, start=1):
        words = line.split("#")[0].replace(",", " ").split()
        if not words:
            continue
        try:
            values = [float(word) for word in words]
        except ValueError:
            values = []
        if len(values) not in (2, 3) or any(not math.isfinite(value) or value <= 0 for value in values):
            raise ConfigError(
                f"{path}, line {number}: {line.strip()[:60]!r} is not a link",
                remedy="Write DOWNLOAD UPLOAD [SHARE], Mbit/s, all above 0: `100 20 0.4`.",
            )
        kinds.append((values[0], values[1], values[2] if len(values) == 3 else 1.0))
    if not kinds:
        raise ConfigError(f"{path} lists no links", remedy="Write one DOWNLOAD UPLOAD [SHARE] per line, Mbit/s.")
    return tuple(kinds)


def _of_kinds(kinds: Kinds, peers: int, rng: random.Random) -> list[Link]:
    """Links in the proportions of the kinds, in random order; regions at random."""
    total = sum(share for _, _, share in kinds)
    drawn = []
    for number in range(peers):
        at, passed, place = (number + 0.5) / peers * total, 0.0, 0
        for place, (_, _, share) in enumerate(kinds):  # noqa: B007 - rounding may pass every share: then the last
            passed += share
            if at < passed:
                break
        drawn.append(kinds[place][:2])
    rng.shuffle(drawn)
    return [(down, up, int(rng.random() * REGIONS)) for down, up in drawn]


def _lognormal(peers: int, rng: random.Random) -> list[Link]:
    """Uplinks of median 10 Mbit/s and σ 1."""
    ups = [
        min(_MOST_MBIT, max(_LEAST_MBIT, _MEDIAN_MBIT * math.exp(rng.gauss(0.0, 1.0)))) for _ in range(peers)
    ]  # fmt: skip
    return [(max(_LEAST_DOWN_MBIT, _DOWN_OVER_UP * up), up, int(rng.random() * REGIONS)) for up in ups]


def _with_poor(peers: int, rng: random.Random, share: float) -> list[Link]:
    """The same, but that share of the peers uploads 1 Mbit/s."""
    links = _lognormal(peers, rng)
    for peer in rng.sample(range(peers), round(share * peers)):
        links[peer] = (*_POOR, links[peer][2])
    return links


def _mixed(peers: int, rng: random.Random) -> list[Link]:
    """Regions that differ: fiber, home, cable, DSL and lognormal links."""
    regions = (
        ((1000.0, 1000.0, 0.5), (300.0, 300.0, 0.5)),
        HOME_LINKS,
        ((250.0, 25.0, 0.7), (100.0, 10.0, 0.3)),
        ((50.0, 10.0, 0.4), (16.0, 1.0, 0.6)),
    )
    sizes = [len(range(region, peers, REGIONS)) for region in range(REGIONS)]
    links = [
        (down, up, region)
        for region, kinds in enumerate(regions)
        for down, up, _ in (_of_kinds(kinds, sizes[region], rng) if sizes[region] else ())
    ]
    links += [(down, up, REGIONS - 1) for down, up, _ in _lognormal(sizes[-1], rng)]
    rng.shuffle(links)
    return links


LINK_SETS: dict[str, Callable[[int, random.Random], list[Link]]] = {
    "home": lambda peers, rng: _of_kinds(HOME_LINKS, peers, rng),
    "lognormal": _lognormal,
    "poor": lambda peers, rng: _with_poor(peers, rng, _FIFTH),
    "poorest": lambda peers, rng: _with_poor(peers, rng, _NEARLY_ALL),
    "mixed": _mixed,
}
"""Name → generator of links. `poor`: lognormal, a fifth uploads 1 Mbit/s; `poorest`: 95 % do."""


def links_of(name: str) -> Callable[[int, random.Random], list[Link]]:
    """The generator of a named set, or of the kinds in a file. Raises `ConfigError`."""
    if name in LINK_SETS:
        return LINK_SETS[name]
    kinds = read_links(Path(name))
    return lambda peers, rng: _of_kinds(kinds, peers, rng)


def populate(
    links: Kinds | Callable[[int, random.Random], list[Link]],
    *,
    peers: int,
    size_bytes: int,
    chunk_bytes: int,
    source_mbit: float,
    churn: float,
    seed: int,
) -> Population:
    """Draw `peers` links, from kinds in their proportions or by a generator; a share `churn` of the peers dies, each at
    a uniform time within the lower bound."""
    rng = random.Random(f"spread/{seed}")  # noqa: S311 - a simulator's randomness
    drawn = _of_kinds(links, peers, rng) if isinstance(links, tuple) else links(peers, rng)
    made = Population(
        size_bytes=size_bytes,
        chunk_bytes=chunk_bytes,
        source=HomeLink(source_mbit * MBIT_BYTES, 10 * source_mbit * MBIT_BYTES, 0),
        peers=tuple(
            HomeLink(min(_MOST_UPLOAD_MBIT, _OFFERED_SHARE * up) * MBIT_BYTES, down * MBIT_BYTES, region)
            for down, up, region in drawn
        ),
        deaths={},
        seed=seed,
    )
    bound_s = made.lower_bound_s()
    doomed = rng.sample(range(peers), round(churn * peers))
    return replace(made, deaths={peer: rng.uniform(0.0, bound_s) for peer in sorted(doomed)})
