"""Wire version check: other versions are reported once, and an error when no compatible peer is left."""

from __future__ import annotations

import pytest

from p2prl.errors import UpdateRequiredError
from p2prl.net.process import bridge, control
from p2prl.net.process.outdated_program import VersionCheck
from p2prl.protocol import wire_version
from p2prl.protocol.identity import PeerId
from p2prl.swarm import events

LINK = ("/ip4/127.0.0.1/tcp/1/p2p/one", "/ip4/127.0.0.1/tcp/2/p2p/two", "/ip4/127.0.0.1/tcp/3/p2p/one")
NEWER, OLDER = wire_version.WIRE_VERSION + 1, wire_version.WIRE_VERSION - 1


def check(bootstrap: tuple[str, ...] = LINK) -> VersionCheck:
    return VersionCheck(bootstrap, lambda: "bring it up to date")


def test_a_strangers_claim_is_reported_once() -> None:
    watch = check()
    told = watch.met("stranger", NEWER, neighbors=0)
    assert told is not None
    assert f"wire version {NEWER}, this program {wire_version.WIRE_VERSION}" in told[0]
    assert "If the run has moved on" in told[1], "anybody can claim a version"
    assert told[1].endswith(": bring it up to date")
    assert watch.met("stranger", NEWER, neighbors=0) is None
    assert watch.met("stranger", NEWER + 1, neighbors=0) is not None


def test_an_older_peer_is_no_reason_to_update() -> None:
    watch = VersionCheck(LINK, lambda: pytest.fail("not asked for"))
    told = watch.met("stranger", OLDER, neighbors=0)
    assert told is not None
    assert f"wire version {OLDER}, older" in told[0]
    assert told[1] == ""


@pytest.mark.parametrize(("version", "remedy"), [(NEWER, "bring it up to date"), (OLDER, "operator")])
def test_all_bootstrap_peers_with_another_version_is_an_error(version: int, remedy: str) -> None:
    watch = check()
    assert watch.met("one", version, neighbors=0)
    with pytest.raises(UpdateRequiredError, match=f"wire version {version}") as caught:
        watch.met("two", version, neighbors=0)
    assert remedy in caught.value.remedy
    assert caught.value.exit_code == 5


def test_one_neighbor_with_our_version_is_enough_to_stay() -> None:
    watch = check()
    watch.met("one", NEWER, neighbors=1)
    assert watch.met("two", NEWER, neighbors=1) is not None


def test_a_learner_has_no_link_and_stays() -> None:
    assert check(()).met("one", NEWER, neighbors=0) is not None


@pytest.mark.parametrize(("offset_s", "words"), [(240.0, "240 s behind"), (-61.4, "61 s ahead of")])
def test_a_wrong_clock_gives_a_remedy(offset_s: float, words: str) -> None:
    event = events.ClockOff(offset_s)
    message = bridge.message_of(
        event, path_of=lambda root: pytest.fail("not asked for"), status=lambda: pytest.fail("not asked for")
    )
    assert isinstance(message, control.Warned)
    assert words in message.message
    assert "automatic time" in message.remedy


def test_a_ban_and_another_version_are_one_line_each() -> None:
    peer = PeerId("12D3KooWLnKH7KCyGyGCGPeeo3uDdXRiT1aZGovtuogpE2pfPGEF")
    for event in (events.PeerBanned(peer, "garbage"), events.WireMismatch(peer, NEWER)):
        message = bridge.message_of(
            event, path_of=lambda root: pytest.fail("not asked for"), status=lambda: pytest.fail("not asked for")
        )
        assert isinstance(message, control.Warned)
        assert "\n" not in message.message + message.remedy


def test_a_crowd_of_other_versions_is_not_remembered_and_hides_nothing() -> None:
    watch = check()
    assert watch.met("one", NEWER, neighbors=0) is not None
    for number in range(5_000):
        watch.met(f"stranger {number}", NEWER, neighbors=0)
    assert len(watch._foreign) <= 1_024
    with pytest.raises(UpdateRequiredError):
        watch.met("two", NEWER, neighbors=0)
