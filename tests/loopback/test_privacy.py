"""Everything that leaves the machines of a run, or lists it, names the learner and those who chose so, and no other
address."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from p2prl.config.new_run import open_run
from p2prl.index.index_client import IndexClient
from p2prl.index.run_facts import listing_of
from p2prl.net.listen_addresses import free_port
from p2prl.protocol.identity import PeerId
from p2prl.protocol.join_link import parse_link
from p2prl.protocol.listing import Listing
from p2prl.scoreboard.ledger.known_run import open_run_manifest
from p2prl_lab.testing.address_scan import (
    Document,
    Place,
    board_documents,
    index_documents,
    places,
    run_folder_documents,
    strange_places,
)
from p2prl_lab.testing.swarm_processes import (
    RoleProcess,
    SwarmProcesses,
    command,
    kill_tree,
    status_of,
    wait_until,
)
from tests.loopback.program import UNHURRIED, make_run

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(1200)]

LEARNER, HOME, VALIDATOR, SEEDER, BOARD = (f"127.0.0.{number}" for number in range(1, 6))
"""Each role has an IPv4 address of its own, but for a volunteer that has IPv6 alone."""

_VISITOR = "198.51.100.77"
"""Of whoever asks the index, as a proxy on its machine says."""

_NAMED_S = 12.0
"""A link may name a peer ten seconds after it was linked, and the learner looks every five seconds at the latest."""


def at(*hosts: str) -> tuple[str, ...]:
    return tuple(part for host in hosts for part in ("--listen", f"/ip{6 if ':' in host else 4}/{host}/tcp/0"))


def ports(role: RoleProcess) -> set[int]:
    daemon = role.daemon()
    assert daemon is not None
    return {
        connection.laddr.port
        for connection in daemon.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    }


def over(link: str, version: int) -> str:
    """The link with the learner's address of one IP version: libp2p would dial IPv6 first."""
    parsed = parse_link(link)
    return str(replace(parsed, bootstrap=tuple(each for each in parsed.bootstrap if each.startswith(f"/ip{version}/"))))


def named_in(link: str) -> set[str]:
    """The peers that a link names."""
    return {part for address in parse_link(link).bootstrap for part in re.findall(r"/p2p/(\w+)", address)}


def page_url(role: RoleProcess) -> str:
    found = wait_until(lambda: re.search(r"http://127\.0\.0\.1:\d+", role.log), seconds=120, what="a page")
    return str(found[0])


def test_no_page_link_log_or_picture_joins_a_contributor_to_its_address(tmp_path: Path) -> None:
    run, swarm = make_run(tmp_path / "runs"), SwarmProcesses(tmp_path / "terminals", forks=True)
    homes = {name: tmp_path / name for name in ("home", "home6", "validator", "seeder", "board", "index")}
    with swarm.running():
        index, port = index_that_counts(swarm, run, homes["index"]), str(free_port())
        listed = ("--updates", "0", "--list", index, "--board", f"http://127.0.0.1:{port}")
        learner = swarm.start("learner", "learn", str(run), *listed, *at(LEARNER, "::1"))
        link = wait_until(lambda: (run / "link").exists() and (run / "link").read_text(), seconds=150, what="a link")
        link4, link6 = over(link, 4), over(link, 6)
        folder_board = swarm.start("folder-board", "board", str(run), "--port", port)
        home = swarm.start("home", "join", link4, *UNHURRIED, *at(HOME), home=homes["home"])
        home6 = swarm.start("home6", "join", link6, *UNHURRIED, *at("::1"), home=homes["home6"])
        validator = swarm.start("validator", "validate", link4, "--rate", "1", *at(VALIDATOR), home=homes["validator"])
        for name in ("home", "home6"):
            wait_until(partial(verified, homes[name]), seconds=150, what=f"a verified group of {name}")
        wait_until(lambda: status_of(homes["validator"]).get("verdicts_passed"), seconds=150, what="a verdict")
        seeder = swarm.start("seeder", "seed", link4, *at(SEEDER), home=homes["seeder"])
        swarm_board = swarm.start("board", "board", link4, "--port", "0", *at(LEARNER), home=homes["board"])
        urls = page_url(folder_board), page_url(swarm_board)
        ids = {name: status_of(homes[name])["peer"] for name in ("home", "home6", "validator")}

        seeder_id = wait_until(lambda: status_of(homes["seeder"]).get("peer"), seconds=60, what="the seeder's id")
        wait_until(lambda: len(named_in((run / "link").read_text())) > 1, seconds=150, what="a link with a peer")
        named_at = time.monotonic()
        wait_until(lambda: time.monotonic() >= named_at + _NAMED_S, seconds=60, what="more turns of the link")

        allowed = {Place(LEARNER), Place(SEEDER), *(Place("::1", port) for port in ports(learner))}
        assert strange_places(run_folder_documents(run), allowed) == []
        for url in urls:  # also the board whose own link is of an hour when there was no seeder
            wait_until(partial(shows, url, seeder_id), seconds=150, what="a page with the seeder")
        assert ports(home6).isdisjoint(ports(learner))
        certificate = tmp_path / "certificate.png"
        environment = swarm.environment(homes["home"])
        wait_until(lambda: counted_at(index) >= {ids["home"], ids["home6"]}, seconds=120, what="people at the index")
        listing = only_listing(index)
        listings = listing_documents(index, swarm, environment)
        documents = [
            *listings,
            *run_folder_documents(run),
            *(document for url in urls for document in board_documents(url)),
            *printed(environment, "certificate", str(run), ids["home"], "--out", str(certificate)),
            Document("certificate.png", certificate.read_bytes()),
            *printed(environment, "ledger", "dump", str(run), str(tmp_path / "ledger")),
            Document("ledger", (tmp_path / "ledger").read_bytes()),
            *printed(environment, "board", str(run), "--json"),
            *printed(environment, "metrics", str(run), "--once"),
            *(each for form in ((), ("--json",)) for each in printed(environment, "status", *form)),
            *printed(environment, "status", str(run)),
            *printed(environment, "me"),
            *printed(environment, "receipts"),
            *printed(environment, "doctor", "--skip-device", "--bundle", str(tmp_path / "report"), "--yes"),
            Document("report", (tmp_path / "report").read_bytes()),
            *(Document(f"{name}'s terminal", role.log.encode()) for name, role in swarm.roles.items()),
        ]
    assert len(documents) > 60
    texts = [document.text for document in documents]
    assert all(any(each in text for text in texts) for each in ids.values()), "the scan sees who works"
    named_here = [text for text in texts if Place(SEEDER) in {Place(place.host) for place in places(text)}]
    assert any(seeder_id in text for text in named_here), "the scan sees who is listed"
    assert strange_places(documents, allowed) == []
    assert_listed_as_documented(run, listing, {PeerId(seeder_id)})
    assert any(listing.link in document.text for document in listings), "the scan sees the listing"
    assert_people_alone_are_named_and_kept(listings, ids.values(), homes["index"], run)
    for role in (home, home6, validator, seeder):
        said = role.log.replace("\n ", "")
        assert said.index("can see this machine's IP address") < said.index("finding the run"), role.name
        assert ("name both" if role is seeder else "joins the two") in role.log
    assert home.log.index("(manifest verified)") < home.log.index("importing the engine"), "torch takes seconds"
    assert "no link, page or ledger joins the two" in swarm_board.log.replace("\n ", ""), "it dials the run too"
    assert "IP address" not in folder_board.log


def test_who_starts_again_without_public_is_named_nowhere(tmp_path: Path) -> None:
    """The key is the same, nobody saw the first process end, and links of its public days are in people's hands: a
    board may be started with one."""
    run, swarm = make_run(tmp_path / "runs"), SwarmProcesses(tmp_path / "terminals", forks=True)
    home, board_home = tmp_path / "home", tmp_path / "board"
    with swarm.running():
        swarm.start("learner", "learn", str(run), "--updates", "0", *at(LEARNER))
        link = wait_until(lambda: (run / "link").exists() and (run / "link").read_text(), seconds=150, what="a link")
        public = swarm.start("public", "join", link, *UNHURRIED, "--public", *at(HOME), home=home)
        peer = wait_until(lambda: status_of(home).get("peer"), seconds=150, what="the volunteer's id")
        wait_until(lambda: peer in named_in((run / "link").read_text()), seconds=150, what="a link with the volunteer")
        of_public_days = (run / "link").read_text()
        boards = [
            swarm.start("folder-board", "board", str(run), "--port", "0"),
            swarm.start("board", "board", of_public_days, "--port", "0", *at(BOARD), home=board_home),
        ]
        urls = [page_url(board) for board in boards]
        for url in urls:
            wait_until(partial(shows, url, peer), seconds=150, what="a page with the volunteer")

        def places_that_name() -> list[str]:
            shown = {"file": (run / "link").read_text()} | {url: link_of(url) for url in urls}
            return [place for place, text in shown.items() if not text or peer in named_in(text)]

        kill_tree(public)
        done = verified(home)
        before = {name: len(role.log) for name, role in swarm.roles.items()}
        wait_until(lambda: not places_that_name(), seconds=60, what="links without a volunteer that is gone")
        again = swarm.start("again", "join", link, *UNHURRIED, *at(HOME), home=home)
        while verified(home) <= done:  # from its start on, whether its new record has been read or not
            assert places_that_name() == []
        assert status_of(home)["peer"] == peer, "the key is the same"
        until = time.monotonic() + _NAMED_S
        while time.monotonic() < until:
            assert places_that_name() == []
        documents = [
            *run_folder_documents(run),
            *(document for url in urls for document in board_documents(url)),
            *printed(swarm.environment(home), "status", str(run)),
            *(
                Document(f"{name}'s terminal", role.log[before.get(name, 0) :].encode())
                for name, role in swarm.roles.items()
            ),
        ]
    assert any(peer in document.text for document in documents), "the scan sees who works"
    assert strange_places(documents, {Place(LEARNER)}) == []
    assert "no new link, page or ledger joins the two" in again.log.replace("\n ", "")


def only_listing(index: str) -> Listing:
    """The newest listing there; it says that somebody works for the run."""
    client = IndexClient(index)

    def found() -> list[Listing]:
        listings = [each.opened.listing for each in client.listings(now=time.time())]
        return [each for each in listings if each.volunteers]

    listings: list[Listing] = wait_until(found, seconds=60, what="a listing with volunteers")
    return listings[0]


def assert_people_alone_are_named_and_kept(
    listings: list[Document], peers: Iterable[str], home: Path, run: Path
) -> None:
    """Contributors stand in an index's documents of people and in no listing; it keeps the run's ledger alone."""
    of_people = [each for each in listings if "/people" in each.name]
    assert named_by(of_people, peers), "the scan sees the people of an index"
    of_listings = [each for each in listings if "/people" not in each.name]
    assert named_by(of_listings, peers) == [], "a contributor has no part in a listing"
    kept = [path.relative_to(home) for path in home.rglob("*") if path.is_file()]
    assert {path.parent.as_posix() for path in kept} == {"index"}
    known = open_run_manifest((run / "run.manifest").read_bytes())
    assert {path.name.partition(".")[0] for path in kept} == {known.run.hex()}


def index_that_counts(swarm: SwarmProcesses, run: Path, home: Path) -> str:
    """The address of an index that counts this run's owner."""
    counted = ("--count", open_run(run).identity.peer_id)
    return page_url(swarm.start("index", "index", "serve", "--listen", "127.0.0.1:0", *counted, home=home))


def counted_at(index: str) -> set[str]:
    """The people with credit at an index."""
    with urllib.request.urlopen(f"{index}/api/v1/people", timeout=20) as answer:
        return {person["id"] for person in json.load(answer)["people"]}


def assert_listed_as_documented(run: Path, listing: Listing, public: set[PeerId]) -> None:
    """docs/run-a-swarm.md: facts of the manifest, the link as the learner has it now, three numbers and a state."""
    folder = open_run(run)
    told = listing_of(
        folder.manifest,
        parse_link(listing.link),
        state=listing.state,
        volunteers=listing.volunteers,
        missing=listing.missing,
        now=listing.sent_ms / 1000,
        board=listing.board,
    )
    assert msgspec.structs.replace(told, sent_ms=listing.sent_ms, expires_ms=listing.expires_ms) == listing
    assert folder.identity.peer_id in named_in(listing.link)
    assert named_in(listing.link) <= {folder.identity.peer_id, *public}


def named_by(documents: list[Document], peers: Iterable[str]) -> list[str]:
    """The documents that name one of these peers."""
    return [document.name for document in documents for peer in peers if peer in document.text]


def listing_documents(index: str, swarm: SwarmProcesses, environment: dict[str, str]) -> list[Document]:
    """All of an index that anybody sees."""
    return [
        *index_documents(index, _VISITOR),
        *(each for form in ((), ("--json",)) for each in printed(environment, "runs", "--index", index, *form)),
        Document("the index's terminal", swarm.roles["index"].log.encode()),
    ]


def verified(home: Path) -> int:
    return int(status_of(home).get("groups", {}).get("verified", 0))


def link_of(url: str) -> str:
    """The link on a board; empty before there is one."""
    try:
        with urllib.request.urlopen(f"{url}/api/v1/run", timeout=20) as answer:
            return str(json.load(answer)["join_link"])
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.SERVICE_UNAVAILABLE:  # it has nothing of the run yet
            raise
        return ""


def shows(url: str, peer: str) -> bool:
    """Whether the link on a board names a peer."""
    text = link_of(url)
    return bool(text) and peer in named_in(text)


def printed(environment: dict[str, str], *arguments: str) -> list[Document]:
    done: Any = command(*arguments, environment=environment)
    assert "Traceback" not in done.stderr, done.stderr
    return [Document(" ".join(arguments[:1]), (done.stdout + done.stderr).encode())]
