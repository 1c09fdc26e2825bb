"""The learner's join link follows the public peers, and keeps its port."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from p2prl.cli.commands.learn_link import LearnerLink, kept_listen
from p2prl.net.process import control
from p2prl.protocol.digests import Digest
from p2prl.protocol.join_link import JoinLink, parse_link
from p2prl.sim.machines import identity_of

LEARNER, SEEDER = identity_of("learner"), identity_of("seeder")
HOME = f"/ip4/192.168.1.7/tcp/4001/p2p/{LEARNER.peer_id}"
PUBLIC = f"/ip4/8.8.8.8/tcp/4001/p2p/{LEARNER.peer_id}"
PEER = f"/ip4/9.9.9.9/tcp/4002/p2p/{SEEDER.peer_id}"
OTHER = f"/ip4/9.9.8.9/tcp/4002/p2p/{identity_of('other').peer_id}"
RUN = Digest(bytes(32))


def folder(directory: Path, *, announce: tuple[str, ...] = ()) -> Any:
    """As much of a run folder as a link needs."""
    return SimpleNamespace(
        directory=directory,
        identity=LEARNER,
        link_file=directory / "link",
        settings=SimpleNamespace(network=SimpleNamespace(announce=announce, listen=("/ip4/0.0.0.0/tcp/0",))),
        link=lambda addresses: JoinLink("run", RUN, addresses),
    )


def status(*peers: str) -> control.Status:
    return control.Status((), 0, 0, 0, 0, (-1, 0, 0), 0, 0, link_peers=peers)


def written(directory: Path) -> tuple[str, ...]:
    return parse_link((directory / "link").read_text()).bootstrap


def test_public_peers_come_into_the_file_and_go(tmp_path: Path) -> None:
    link = LearnerLink(folder(tmp_path), lambda text: None)
    link.take(status(PEER))
    assert not (tmp_path / "link").exists(), "the learner's own addresses are not known yet"
    link.begin((HOME, PUBLIC, "/ip4/127.0.0.1/tcp/4001/p2p/" + LEARNER.peer_id))
    assert written(tmp_path) == (PUBLIC, HOME)
    link.take(status(PEER))
    assert written(tmp_path) == (PUBLIC, HOME, PEER)
    assert len((tmp_path / "link").read_text()) < 400
    link.take(status())
    assert written(tmp_path) == (PUBLIC, HOME)


def test_a_new_link_is_shown_but_not_at_every_change(tmp_path: Path) -> None:
    now = 1_000.0
    shown: list[str] = []
    link = LearnerLink(folder(tmp_path), shown.append, lambda: now)
    link.begin((PUBLIC,))
    link.take(status(PEER))
    first = link.text
    assert shown == [first], "the one before named the learner alone"
    now += 599
    link.take(status(PEER, OTHER))
    assert shown == [first]
    now += 1
    link.take(status(PEER, OTHER))
    link.take(status(PEER, OTHER))
    assert shown == [first, link.text]


def test_announced_names_come_first_with_the_learners_id(tmp_path: Path) -> None:
    link = LearnerLink(folder(tmp_path, announce=("/dns4/run.example.org/tcp/4001",)), lambda text: None)
    link.begin((PUBLIC,))
    assert written(tmp_path) == (f"/dns4/run.example.org/tcp/4001/p2p/{LEARNER.peer_id}", PUBLIC)
    assert link.reach_warning() == ""


def test_the_warning_is_about_the_link_and_not_about_a_relay_that_it_does_not_name(tmp_path: Path) -> None:
    relayed = f"{PEER}/p2p-circuit/p2p/{LEARNER.peer_id}"
    here = f"/ip4/127.0.0.1/tcp/4001/p2p/{LEARNER.peer_id}"
    cases = (((HOME, here), (HOME,), "local network only"), ((here,), (here,), "this machine only"))
    for others, named, words in cases:
        link = LearnerLink(folder(tmp_path), lambda text: None)
        link.begin((relayed, *others))
        assert written(tmp_path) == named
        assert words in link.reach_warning()
        link.take(status(PEER))
        assert relayed in written(tmp_path)
        assert link.reach_warning() == ""


def test_a_learner_that_nobody_can_dial_has_a_link_that_works_from_the_start(tmp_path: Path) -> None:
    relayed = f"{PEER}/p2p-circuit/p2p/{LEARNER.peer_id}"
    link = LearnerLink(folder(tmp_path), lambda text: None, via=(PEER,))
    link.begin((HOME, relayed))
    assert written(tmp_path)[0] == relayed, "a relay that the owner has named may be shown"
    assert PEER in written(tmp_path)
    assert link.reach_warning() == ""
    link.take(status(PEER, OTHER))
    assert [written(tmp_path).count(each) for each in (PEER, OTHER)] == [1, 1]


def test_the_port_is_kept_for_the_next_start(tmp_path: Path) -> None:
    made = folder(tmp_path)
    assert kept_listen(made, ()) == ("/ip4/0.0.0.0/tcp/0",)
    LearnerLink(made, lambda text: None).begin((PUBLIC,))
    assert kept_listen(made, ()) == ("/ip4/0.0.0.0/tcp/4001",)
    assert kept_listen(made, ("/ip4/0.0.0.0/tcp/5",)) == ("/ip4/0.0.0.0/tcp/5",)
