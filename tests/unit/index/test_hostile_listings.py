"""Hostile listings, and indexes that lie, withhold, hang or flood: the honest listing is kept, mirrored and found."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from p2prl.cli.commands.join_any import listed_link
from p2prl.clock import SystemClock
from p2prl.errors import ConfigError, UnreachableError
from p2prl.index import index_client, run_finder
from p2prl.index.index_client import MOST_CROWD, MOST_LISTED, IndexClient
from p2prl.index.index_state import IndexState
from p2prl.index.listing_table import ListingRefusedError, ManifestWantedError
from p2prl.index.mirroring import Mirroring, mirror_once
from p2prl.index.run_choice import Machine, Offer, Wishes, by_need, dialed_link, left_out
from p2prl.index.run_finder import RunFinder
from p2prl.protocol.listing import open_listing, run_id
from p2prl.swarm.peers.dial_rules import DialRules
from p2prl.swarm.peers.subnets import Subnet
from p2prl_lab.testing.hostile_listings import hostile_listings
from p2prl_lab.testing.index_documents import runs_json
from p2prl_lab.testing.listed_runs import NOW, ListedRun, many_runs
from p2prl_lab.testing.sample_ledgers import identity
from tests.unit.index.servers import Answering, Serve, manifest_path

VICTIM = ListedRun()
ATTACKS = sorted(hostile_listings(VICTIM, now=NOW))
HONEST, HOSTILE = Subnet("203.0.113.0/24"), Subnet("198.51.100.0/24")


def listed(now: float) -> IndexState:
    """An index that has the victim's listing of a moment ago."""
    state = IndexState(SystemClock())
    state.offer(VICTIM.signed(now=now), VICTIM.manifest_raw, HONEST)
    return state


def kept(state: IndexState) -> list[bytes]:
    return [row.kept.opened.raw for row in state.rows()]


def honest_answers(now: float) -> Mapping[str, bytes]:
    return {"/api/v1/runs": runs_json(VICTIM.signed(now=now)), manifest_path(VICTIM): VICTIM.manifest_raw}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_index_refuses_it_and_keeps_the_honest_listing(attack: str) -> None:
    now = time.time()
    state, hostile = listed(now), hostile_listings(VICTIM, now=now)[attack]
    for manifest in (b"", hostile.manifest):
        with pytest.raises((ListingRefusedError, ManifestWantedError)):
            state.offer(hostile.listing, manifest, HOSTILE)
    assert kept(state) == [VICTIM.signed(now=now)]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_lying_index_gets_it_into_no_mirror_and_to_no_volunteer(attack: str, answering: Answering) -> None:
    now = time.time()
    hostile = hostile_listings(VICTIM, now=now)[attack]
    liar = answering({"/api/v1/runs": runs_json(hostile.listing), manifest_path(hostile.run): hostile.manifest})
    state = listed(now)
    assert mirror_once(state, IndexClient(liar), now=now) == 0
    assert kept(state) == [VICTIM.signed(now=now)]
    honest = answering(honest_answers(now))
    for urls in ((liar, honest), (honest, liar)):
        found = RunFinder(urls).look(now=now)
        good = [opened.raw for opened, _ in found.listings if run_id(opened.run) not in found.faults]
        assert good == [VICTIM.signed(now=now)]


def test_every_attack_is_in_the_documents() -> None:
    page = Path("docs/network.md").read_text().partition("## Listings and indexes")[2]
    assert set(re.findall(r"^\| ([^|]+?) \|", page, re.MULTILINE)) >= set(ATTACKS)


def test_an_index_that_withholds_a_manifest_keeps_nobody_from_a_run(answering: Answering) -> None:
    now = time.time()
    listing = runs_json(VICTIM.signed(now=now, missing=9))
    silent, wrong = {"/api/v1/runs": listing}, {"/api/v1/runs": listing, manifest_path(VICTIM): b"junk"}
    for liar in (answering(silent), answering(wrong)):
        honest = answering(honest_answers(now))
        assert RunFinder((liar, honest)).look(now=now).faults == {}
    assert "not the manifest" in RunFinder((answering(wrong),)).look(now=now).faults[run_id(VICTIM.run)]


def test_an_index_that_invents_runs_and_hangs_holds_up_neither_a_volunteer_nor_a_mirror(
    answering: Answering, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    invented = [run.signed(now=now, missing=1_000_000) for run in many_runs(300)]
    liar = answering({"/api/v1/runs": runs_json(*invented)} | {manifest_path(run): None for run in many_runs(300)})
    honest = answering(honest_answers(now))
    monkeypatch.setattr(run_finder, "FETCH_S", 1.0)
    found = RunFinder((liar, honest)).look(now=now)
    assert len(found.listings) == 301
    assert run_id(VICTIM.run) not in found.faults
    state = IndexState(SystemClock())
    mirroring, taken = Mirroring(state, (liar, honest), SystemClock().now), threading.Event()
    offer = state.offer

    def noted(raw: bytes, manifest: bytes, source: Subnet) -> object:
        found = offer(raw, manifest, source)
        taken.set()
        return found

    monkeypatch.setattr(state, "offer", noted)
    mirroring.start()
    assert taken.wait(60.0)
    mirroring.stop()
    assert kept(state) == [VICTIM.signed(now=now)]


def test_an_index_that_leaves_a_run_out_hides_it_from_those_alone_who_ask_no_other(answering: Answering) -> None:
    now = time.time()
    other = many_runs(1)[0]
    short = {"/api/v1/runs": runs_json(other.signed(now=now)), manifest_path(other): other.manifest_raw}
    withholding, honest = answering(short), answering(honest_answers(now))
    state = listed(now)
    assert mirror_once(state, IndexClient(withholding), now=now) == 1
    assert VICTIM.signed(now=now) in kept(state)
    found = RunFinder((withholding, honest)).look(now=now)
    assert {opened.listing.name for opened, _ in found.listings} == {VICTIM.name, other.name}
    assert found.faults == {}


DEEP = b'{"runs": [], "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    "body",
    [DEEP, b'{"runs": [{"record_base64": "", "crowd": ' + b"9" * 9_000 + b"}]}", b'{"runs": [{"record_base64": 1}]}'],
    ids=["deep", "digits", "number"],
)
def test_a_document_that_no_index_writes_is_refused_in_a_sentence(answering: Answering, body: bytes) -> None:
    with pytest.raises(UnreachableError, match="no index of runs"):
        IndexClient(answering({"/api/v1/runs": body})).listings(now=time.time())


def test_a_crowd_of_any_size_is_a_number_that_choosing_bears(answering: Answering) -> None:
    now = time.time()
    document = json.loads(runs_json(VICTIM.signed(now=now)))
    for crowd, believed in ((10**400, MOST_CROWD), (-7, 1), (3, 3)):
        document["runs"][0]["crowd"] = crowd
        (found,) = IndexClient(answering({"/api/v1/runs": json.dumps(document).encode()})).listings(now=now)
        assert found.crowd == believed
        assert by_need([Offer(found.opened, found.crowd)], Wishes())


def test_of_a_flood_in_one_answer_so_many_are_opened(answering: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[bytes] = []
    monkeypatch.setattr(index_client, "MOST_LISTED", 3)

    def noted(raw: bytes, *, now: float) -> object:
        opened.append(raw)
        return open_listing(raw, now=now)

    monkeypatch.setattr(index_client, "open_listing", noted)
    now = time.time()
    url = answering({"/api/v1/runs": runs_json(*[run.signed(now=now) for run in many_runs(9)])})
    assert len(IndexClient(url).listings(now=now)) == len(opened) == 3
    assert MOST_LISTED >= 4 * 1_024


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"error": "the listing is too long"}', "the listing is too long"),
        (b'{"error": ' + b"[" * 100_000, "status 400"),
        (b'{"error": 7}', "status 400"),
        (b"\xff", "status 400"),
        (b'{"error": "' + b"x" * 60_000 + b'"}', "x" * 300),
    ],
)
def test_a_learner_bears_any_refusal(monkeypatch: pytest.MonkeyPatch, body: bytes, reason: str) -> None:
    client = IndexClient("http://index.test")
    monkeypatch.setattr(IndexClient, "_post", lambda *_: (400, body))
    with pytest.raises(ConfigError) as caught:
        client.submit(VICTIM.signed(), VICTIM.manifest_raw)
    assert str(caught.value) == f"http://index.test refuses the listing: {reason}"


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/127.0.0.1/tcp/6379",
        "/ip4/169.254.169.254/tcp/80",
        "/ip4/192.168.1.1/tcp/80",
        "/ip4/8.8.8.8/tcp/22",
        "/ip6/::1/tcp/8080",
        "/ip6/::ffff:127.0.0.1/tcp/8080",
        "/dns4/printer.local/tcp/9100",
    ],
)
def test_a_listed_link_leads_a_volunteer_neither_into_its_machine_nor_into_its_network(address: str) -> None:
    machine, public = Machine(dials=DialRules()), "/ip4/8.8.8.8/tcp/4001"
    inward, mixed = (
        VICTIM.opened(link=str(VICTIM.link_to(*addresses))) for addresses in ((address,), (address, public))
    )
    assert left_out(inward, machine, Wishes()) == "its join link leads to no public address"
    assert left_out(mixed, machine, Wishes()) == ""
    assert dialed_link(mixed, machine) == VICTIM.link_to(public)


@pytest.mark.parametrize(
    ("leads_to", "link"),
    [("127.0.0.1", ""), ("192.168.1.1", ""), ("8.8.8.8", str(VICTIM.link_to("/ip4/8.8.8.8/tcp/4001")))],
)
def test_a_name_in_a_listed_link_is_looked_up_before_a_worker_trusts_it(
    monkeypatch: pytest.MonkeyPatch, leads_to: str, link: str
) -> None:
    def found(*arguments: object, **named: object) -> list[tuple[object, ...]]:
        del arguments, named
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (leads_to, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    assert listed_link(VICTIM.opened(), Machine(dials=DialRules())) == link


def test_a_swarm_on_one_machine_or_in_one_network_is_served() -> None:
    here = VICTIM.opened(link=str(VICTIM.link_to("/ip4/127.0.0.1/tcp/4001")))
    assert left_out(here, Machine(dials=DialRules(is_local=True)), Wishes()) == ""
    relayed = f"/ip4/8.8.4.4/tcp/4001/p2p/{identity('relay').peer_id}/p2p-circuit"
    assert left_out(VICTIM.opened(link=str(VICTIM.link_to(relayed))), Machine(dials=DialRules()), Wishes()) == ""
