"""A flood of listings from few addresses fills its own part of an index, and honest ones stay and are found."""

from __future__ import annotations

import random

from p2prl.index.listing_table import ListingRefusedError, ListingTable, TableLimits
from p2prl.index.run_choice import Offer, Wishes, choose
from p2prl.swarm.peers.subnets import Subnet
from p2prl_lab.testing.listed_runs import NOW, ListedRun, many_runs, subnet_name


def test_ten_thousand_spam_listings_displace_no_honest_one() -> None:
    """100 keys on 16 subnets, in two minutes; 40 honest learners, 8 of them in a subnet of the flood, and first."""
    table, rng = ListingTable(), random.Random(4)
    spam = many_runs(10_000, owners=100)
    honest = [ListedRun(f"honest-{number}", f"honest-{number}") for number in range(40)]
    homes = [Subnet(subnet_name(number if number < 8 else 100 + number)) for number in range(40)]
    sent, refusals, last_signed = 0, 0, dict.fromkeys(range(40), NOW)
    for run, home in zip(honest, homes, strict=True):
        table.offer(run.signed(), run.manifest_raw, source=home, now=NOW)
    for number, run in enumerate(spam):
        now = NOW + number * 0.012
        for place in range(40):
            if now - last_signed[place] >= 60.0:
                last_signed[place] = now
                table.offer(honest[place].signed(now=now), b"", source=homes[place], now=now)
        try:
            source = Subnet(subnet_name(rng.randrange(16)))
            table.offer(run.signed(now=now), run.manifest_raw, source=source, now=now)
            sent += 1
        except ListingRefusedError:
            refusals += 1
    assert sent + refusals == 10_000
    rows = table.rows(NOW + 120)
    kept = [row.kept.opened.listing.name for row in rows]
    assert {run.name for run in honest} <= set(kept)
    assert len(kept) - 40 <= 16 * TableLimits().per_subnet
    offers = [Offer(row.kept.opened, row.crowd) for row in rows]
    taken = [choose(offers, Wishes(), rng.random()) for _ in range(2_000)]
    share = sum(offer is not None and offer.opened.listing.name.startswith("honest") for offer in taken) / 2_000
    assert share > 32 / (32 + 16) - 0.05  # a subnet counts once, however many listings it has
