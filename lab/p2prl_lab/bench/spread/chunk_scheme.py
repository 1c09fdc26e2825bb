"""Base of the schemes that the product's relay is compared with, on the same links.

The assumptions favor these schemes: trees know every link, queries cost no message, requests and chunk choices see the
other side's current state, and a death is detected after three seconds without false alarms.
"""

from __future__ import annotations

from p2prl.sim.virtual_time import START, VirtualLoop
from p2prl_lab.bench.spread.home_links import HomeLink, Population
from p2prl_lab.bench.spread.outcome import Outcome, Tell
from p2prl_lab.bench.spread.paced_links import PacedLink, PacedLinks

_NOTICED_S = 3.0
"""Time until the death of a peer is noticed."""

_WORST = 40.0
"""A run ends at this multiple of the lower bound, finished or not: later figures would not change a verdict."""


class ChunkScheme:
    """State of a distribution: the chunks each peer has, and the links. Subclasses decide what to send."""

    def __init__(self, population: Population, extra: tuple[HomeLink, ...] = ()) -> None:
        self.population = population
        self.source = len(population.peers)
        everyone = (*population.peers, population.source, *extra)
        self.loop = VirtualLoop()
        self.network = PacedLinks(
            self.loop, [PacedLink(p.upload_bytes_s, p.download_bytes_s, p.region) for p in everyone]
        )
        self.complete = (1 << population.chunks) - 1
        self.have = [0] * len(everyone)
        self.have[self.source] = self.complete
        self.finished_at: dict[int, float] = {}
        self.arrived = self.useful = 0
        for peer, at in population.deaths.items():
            self.loop.at(START + at, lambda peer=peer: self._die(peer))  # type: ignore[misc]

    def size(self, chunk: int) -> int:
        """Bytes of a chunk."""
        return min(self.population.chunk_bytes, self.population.size_bytes - chunk * self.population.chunk_bytes)

    def send(self, source: int, destination: int, chunk: int) -> None:
        """Queue a chunk; `gained` and `free` follow."""

        def arrived() -> None:
            self.arrived += self.size(chunk)
            if not self.have[destination] >> chunk & 1:
                self.useful += self.size(chunk)
                self.have[destination] |= 1 << chunk
                if self.have[destination] == self.complete:
                    self.finished_at[destination] = self.loop.now - START
            self.gained(source, destination, chunk)

        self.network.send(source, destination, self.size(chunk), arrived, lambda: self.free(source, destination))

    def gained(self, source: int, peer: int, chunk: int) -> None:
        """A chunk has arrived, new or not."""

    def free(self, source: int, peer: int) -> None:
        """A chunk was acknowledged, so the link is free."""

    def died(self, peer: int) -> None:
        """The other peers have noticed a death."""

    def run(self, tell: Tell) -> Outcome:
        """Run until every survivor has finished, or far beyond the bound."""
        limit = START + _WORST * self.population.lower_bound_s()
        waiting = set(self.population.survivors)
        while waiting and self.loop.now < limit:
            self.loop.run_until(self.loop.now + 1.0)
            waiting -= self.finished_at.keys()
            tell(1.0 - len(waiting) / len(self.population.survivors))
        return Outcome(
            finished_at=self.finished_at,
            source_bytes=self.network.links[self.source].sent_bytes,
            sent_bytes=sum(link.sent_bytes for link in self.network.links),
            arrived_bytes=self.arrived,
            useful_bytes=self.useful,
        )

    def _die(self, peer: int) -> None:
        self.network.kill(peer)
        self.loop.at(self.loop.now + _NOTICED_S, lambda: self.died(peer))
