"""Home links of the spread benchmark's peers, drawn from a list of kinds, and the times at which peers die.

A list of kinds is a text file with one `DOWNLOAD UPLOAD [SHARE]` per line, Mbit/s; `#` begins a comment.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path

from p2prl.errors import ConfigError

MBIT_BYTES = 125_000.0
REGIONS = 5

_OFFERED_SHARE = 0.8
"""Share of an uplink that volunteers offer."""

_MOST_UPLOAD_MBIT = 200.0
"""Most that even the largest home uplink offers."""

HOME_LINKS = (
    (1000.0, 1000.0, 0.05),
    (500.0, 250.0, 0.10),
    (300.0, 50.0, 0.15),
    (100.0, 20.0, 0.40),
    (50.0, 10.0, 0.20),
    (25.0, 5.0, 0.10),
)
"""Mixed home links: download, upload (Mbit/s), share of peers. Two thirds upload at less than 20 Mbit/s."""


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


def read_links(path: Path) -> tuple[tuple[float, float, float], ...]:
    """The kinds of links in a file. Raises `ConfigError` that names the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", remedy="Use a text file of link rates.") from error
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


def populate(
    kinds: tuple[tuple[float, float, float], ...],
    *,
    peers: int,
    size_bytes: int,
    chunk_bytes: int,
    source_mbit: float,
    churn: float,
    seed: int,
) -> Population:
    """Draw `peers` links in the proportions of the kinds, in random order; a share `churn` dies, each at a uniform time
    within the lower bound."""
    rng = random.Random(f"spread/{seed}")  # noqa: S311 - a simulator's randomness
    total = sum(share for _, _, share in kinds)
    drawn = []
    for number in range(peers):
        at, passed = (number + 0.5) / peers * total, 0.0
        for download, upload, share in kinds:
            passed += share
            if at < passed or (download, upload, share) == kinds[-1]:
                given = min(_MOST_UPLOAD_MBIT, _OFFERED_SHARE * upload)
                drawn.append((given * MBIT_BYTES, download * MBIT_BYTES))
                break
    rng.shuffle(drawn)
    links = tuple(HomeLink(upload, download, int(rng.random() * REGIONS)) for upload, download in drawn)
    source = HomeLink(source_mbit * MBIT_BYTES, 10 * source_mbit * MBIT_BYTES, 0)
    made = Population(
        size_bytes=size_bytes, chunk_bytes=chunk_bytes, source=source, peers=links, deaths={}, seed=seed
    )  # fmt: skip
    bound_s = made.lower_bound_s()
    doomed = rng.sample(range(peers), round(churn * peers))
    deaths = {peer: rng.uniform(0.0, bound_s) for peer in sorted(doomed)}
    return Population(
        size_bytes=size_bytes, chunk_bytes=chunk_bytes, source=source, peers=links, deaths=deaths, seed=seed
    )  # fmt: skip
