"""A blob over real sockets and shaped links while one volunteer dies and another serves corrupt chunks.

How fast it is on quiet processors stands in docs/benchmarks/spread.md; here nothing is timed.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from p2prl.protocol.kinds import Role
from p2prl_lab.testing.shaped_swarm import ShapedSwarm
from p2prl_lab.testing.swarm_processes import LISTEN, SwarmProcesses, status_of, wait_until
from tests.json_shapes import breaches

pytestmark = pytest.mark.loopback

SIZE, CHUNK = 1 << 20, 16 << 10


@pytest.mark.timeout(1200)
def test_survivors_finish_the_liar_is_banned_and_the_learner_sends_three_copies_at_most(tmp_path: Path) -> None:
    swarm = ShapedSwarm(tmp_path, SIZE)
    with swarm.running():
        learner = swarm.start("learner", upload_mbit=4.0, download_mbit=40.0, role=Role.LEARNER)
        honest = [swarm.start(f"v{number}", upload_mbit=2.0, download_mbit=8.0) for number in range(3)]
        doomed = swarm.start("doomed", upload_mbit=2.0, download_mbit=8.0)
        liar = swarm.start("liar", upload_mbit=8.0, download_mbit=8.0, corrupt=True)
        swarm.link_all(seconds=120)
        learner.tell(publish=SIZE, chunk_bytes=CHUNK)
        while doomed.ask("report")["held"] < 16:
            assert not doomed.said("ready"), "it was done before it could die"
        doomed.kill()
        for peer in honest:
            assert peer.wait_to_say("ready", seconds=120)["intact"]
        assert learner.ask("report")["sent"] <= 3 * SIZE + 2 * CHUNK
        # How many of them the liar serves is random; a peer without another source is deceived at once.
        liar.wait_to_say("ready", seconds=120)
        late = swarm.start("late", upload_mbit=2.0, download_mbit=8.0)
        late.wait_to_say("up", seconds=60)
        late.tell(connect=liar.said("up")[0]["addresses"][:1])
        late.wait_to_say("banned", seconds=60)
        late.tell(connect=[peer.said("up")[0]["addresses"][0] for peer in (learner, *honest)])
        assert late.wait_to_say("ready", seconds=120)["intact"]
        for peer in (*honest, late):
            assert [line["peer"] for line in peer.said("banned")] in ([], [liar.peer]), "the liar, once"


@pytest.mark.timeout(1200)
def test_a_seeder_relays_weights_in_little_memory(tmp_path: Path) -> None:
    swarm, command_line = ShapedSwarm(tmp_path / "shaped", SIZE), SwarmProcesses(tmp_path / "seeder")
    home = tmp_path / "home"
    with swarm.running(), command_line.running():
        learner = swarm.start("learner", upload_mbit=1.0, download_mbit=40.0, role=Role.LEARNER)
        learner.wait_to_say("up", seconds=60)
        learner.tell(publish=SIZE, chunk_bytes=CHUNK)
        seeder = command_line.start(
            "seeder", "seed", swarm.link_to("learner"), *LISTEN, "--upload-mbit", "4", "--json", home=home
        )

        def carries() -> bool:
            status = status_of(home)
            return bool(status) and status["weight_bytes_received"] >= SIZE and status["state"] == "seeding"

        wait_until(carries, seconds=120, what="the seeder has the weights")
        late = swarm.start("late", upload_mbit=2.0, download_mbit=8.0, bootstrap="learner")
        late.wait_to_say("up", seconds=60)
        late.tell(connect=learner.said("up")[0]["addresses"][:1])
        assert late.wait_to_say("ready", seconds=120)["intact"]
        wait_until(lambda: status_of(home)["weight_bytes_sent"], seconds=30, what="the seeder sends")
        network = seeder.network()
        assert network is not None
        loaded = " ".join(entry.path for entry in network.memory_maps())
        assert "libtorch" not in loaded
        assert network.memory_info().rss < 128e6
        seeder.process.send_signal(signal.SIGINT)
        assert seeder.wait(60) == 130
        last = json.loads(seeder.log.splitlines()[-1])
        assert breaches(last, "p2prl seed") == []
        assert (last["role"], last["state"], last["upload_mbit"]) == ("seeder", "stopped", 4.0)
        assert last["weight_bytes_received"] == SIZE
        assert last["weight_bytes_sent"] > 0
        kept = json.loads((home / "seeder-1" / "uploads.json").read_text())
        assert kept["uploaded_bytes"] >= last["uploaded_bytes_month"] > 0, "the next start knows what the month has had"
