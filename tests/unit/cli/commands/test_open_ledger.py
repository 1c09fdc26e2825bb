"""Board of a run folder: its learner's lock and last report, and the newest join link."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from p2prl.cli.commands.open_ledger import LearnerWatch, check_source, ledger_of_run
from p2prl.config.named_link import named_link
from p2prl.config.own_runs import find_run
from p2prl.config.worker_folder import try_lock, write_status
from p2prl.errors import ConfigError
from p2prl.net.storage.key_file import create_identity
from p2prl.protocol.identity import Identity
from p2prl.protocol.join_link import JoinLink, parse_link
from p2prl.protocol.kinds import Role
from p2prl.scoreboard.ledger.run_folder_source import RunFolderSource
from p2prl.swarm.peers.peer_memory import LinkedRecord, PeerMemory
from p2prl.swarm.peers.subnets import subnet_of
from p2prl_lab.testing.sample_ledgers import LedgerWriter, identity
from tests.unit.swarm.peer_links import record


def test_a_learner_is_offline_when_nothing_holds_its_lock(tmp_path: Path) -> None:
    lock = try_lock(tmp_path)
    assert lock is not None
    write_status(tmp_path / "status.json", {"time": 4e9})
    assert LearnerWatch(tmp_path)() is None
    lock.close()  # as the end of a process does, also after SIGKILL
    assert LearnerWatch(tmp_path)() == 4e9


def test_before_its_first_report_the_start_is_the_last_sign_of_life(tmp_path: Path) -> None:
    lock = try_lock(tmp_path)
    assert lock is not None
    lock.close()
    assert LearnerWatch(tmp_path)() == (tmp_path / "lock").stat().st_mtime


LINK = f"p2prl://chain@{'a' * 52}?b=/ip4/127.0.0.1/tcp/1/p2p/{identity('learner').peer_id}"


@pytest.mark.parametrize("quote", ["'", '"', " "])
def test_a_link_in_quotation_marks_is_a_link_to_every_command(quote: str, tmp_path: Path) -> None:
    """`p2prl join` read it, and the board took it for the name of a folder."""
    text = f"{quote}{LINK}{quote}"
    check_source(text)
    assert named_link(text) == parse_link(LINK)
    with pytest.raises(ConfigError, match=r"'999\.1\.1\.1' is no IPv4 address"):
        check_source(text.replace("127.0.0.1", "999.1.1.1"))
    with pytest.raises(ConfigError, match="no worker under"):
        find_run(tmp_path, text)
    with pytest.raises(ConfigError, match="instead of 52: it was cut off"):
        find_run(tmp_path, text.replace("aaaa?", "?"))


LEARNER, SEEDER, HOME = (identity(name) for name in ("learner", "seeder", "home"))
PLACES = {who.peer_id: f"/ip4/8.8.{number}.1/tcp/4001" for number, who in enumerate((LEARNER, SEEDER, HOME))}


def at(*peers: Identity) -> tuple[str, ...]:
    return tuple(f"{PLACES[peer.peer_id]}/p2p/{peer.peer_id}" for peer in peers)


def shown(board: RunFolderSource) -> tuple[str, ...]:
    text = board.snapshot().join_link
    return parse_link(text).bootstrap if text else ()


def test_a_run_folders_board_shows_the_newest_link_and_of_its_peers_the_listed_ones(tmp_path: Path) -> None:
    """A link that an earlier release has written may name anybody."""
    writer, now = LedgerWriter(), time.time()
    writer.write_journal(tmp_path / "journal.db").close()
    (tmp_path / "run.manifest").write_bytes(writer.manifest_raw)
    create_identity(tmp_path / "key.json", LEARNER)
    memory = PeerMemory(writer.run, LEARNER.peer_id)
    for who in (SEEDER, HOME):
        address = PLACES[who.peer_id]
        signed = record(who, run=writer.run, address=address, at=now, is_listed=who is SEEDER)
        memory.note([LinkedRecord(who.peer_id, signed, Role.SEEDER, (address,), subnet_of(address), True, now)], now)
    (tmp_path / "peers").write_bytes(memory.to_bytes())
    with ledger_of_run(tmp_path) as board:
        assert shown(board) == ()
        for written, named in (
            ((LEARNER, SEEDER, HOME), (LEARNER, SEEDER)),
            ((LEARNER, HOME), (LEARNER,)),
            ((LEARNER, SEEDER), (LEARNER, SEEDER)),
            ((HOME,), ()),
        ):
            (tmp_path / "link").write_text(f"{JoinLink('run', writer.run, at(*written))}\n")
            assert shown(board) == at(*named)
        (tmp_path / "link").write_text("p2prl://half")
        assert shown(board) == ()
