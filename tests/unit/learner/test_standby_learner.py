"""A standby learner: copies of a training run, and a promotion, killed at every step; hostile answers."""

from __future__ import annotations

import io
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from p2prl.cli.commands.learn_standby import follow_learner
from p2prl.cli.commands.promote import promote as promote_command
from p2prl.cli.options import NetworkOptions
from p2prl.errors import ConfigError, IdentityError, RemoteProtocolError
from p2prl.learner.following import held_copies
from p2prl.learner.following.copy_list import CopiedFile, CopyHead, CopyList, is_copied, read_list, write_list
from p2prl.learner.following.follower import AGAIN_S, Follower
from p2prl.learner.following.heard_heads import HeardHeads
from p2prl.learner.following.held_copies import HeldCopies, HeldCopy, newest_held
from p2prl.learner.following.promotion import is_standby, plan_promotion, promote, refuse_standby
from p2prl.learner.following.publication_gate import SILENT_S
from p2prl.learner.learner_paths import LearnerPaths
from p2prl.learner.timing.next_update import Action
from p2prl.net.process import control
from p2prl.protocol.digests import chunk_digest
from p2prl.protocol.envelope import body_of, open_envelope, seal
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.protocol.manifests import PolicyManifest
from p2prl.swarm import signals
from tests.unit.learner.scripted_swarm import KilledError, RecordingPort, ScriptedSwarm, fresh_runs, make_learner
from tests.unit.learner.small_run import NOW, SmallRun

STANDBY = "standby"


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[[str], SmallRun]]:
    with fresh_runs(tmp_path) as make:
        yield make


class FollowedPort(RecordingPort):
    """A recording port that keeps the answers to a standby."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[signals.SendFollow] = []

    def send(self, message: control.ToNetwork) -> None:
        if isinstance(message, signals.SendFollow):
            self.answers.append(message)
        super().send(message)


class FollowedSwarm(ScriptedSwarm):
    """A learner with a standby, whose questions and answers pass from hand to hand."""

    pace = 4
    """Exchanges in a turn of the learner: a copy takes five."""

    def __init__(self, small_run: SmallRun, folder: Path, **changes: Any) -> None:
        super().__init__(small_run, lambda: make_learner(small_run, **changes))
        self.port: FollowedPort = FollowedPort()
        self.learner.attach(self.port)
        self.paths = LearnerPaths(folder)
        self.whole: list[HeldCopy] = []
        self.now = 0.0
        self.start_standby()

    def start_standby(self) -> None:
        """A fresh process on the standby's machine."""
        self.follower = Follower(HeldCopies(self.paths), lambda _: b"permit", self.whole.append)

    def exchange(self) -> None:
        """Pass the standby's questions to the learner's inbox, and the answers that it sent to the standby."""
        answers, self.port.answers = self.port.answers, []
        for each in answers:
            self.follower.receive(signals.FollowArrived(each.copy, each.file, each.piece, each.data), self.now)
        self.now += 1.0
        for ask in self.follower.questions(self.now):
            self.port.inbox.append(signals.FollowWanted(STANDBY, ask.held, ask.copy, ask.file, ask.piece))

    def turn(self) -> Action:
        for _ in range(self.pace):
            self.exchange()
            self.learner._read(0.0)
        return super().turn()


def manifests(port: RecordingPort) -> set[bytes]:
    """Versions that left the learner."""
    return {raw for raw in port.sent if open_envelope(raw, now=None).kind is Kind.POLICY_MANIFEST}


def promoted(swarm: FollowedSwarm, small_run: SmallRun) -> SmallRun:
    """The run of the promoted folder, with the same key and volunteers' slots."""
    promote(swarm.paths, plan_promotion(swarm.paths))
    return _moved(small_run, swarm.paths.run)


def _moved(small_run: SmallRun, folder: Path) -> SmallRun:
    other = object.__new__(SmallRun)
    other.__dict__.update(small_run.__dict__)
    other.directory = folder
    return other


@pytest.mark.parametrize("killed_after", [4, 7, 12, 18, 25])
def test_a_promoted_standby_signs_nothing_twice_and_goes_on_exactly(
    fresh: Callable[[str], SmallRun], tmp_path: Path, killed_after: int
) -> None:
    small_run = fresh("run")
    swarm = FollowedSwarm(small_run, tmp_path / "second")
    for _ in range(400):
        if len(swarm.whole) >= killed_after or swarm.turn() is Action.FINISH:
            break
    seen = manifests(swarm.port)
    heads = swarm.port.bodies(Kind.LEDGER_HEAD)
    swarm.learner.close()
    assert swarm.whole, "a copy was followed"

    moved = promoted(swarm, small_run)
    again = ScriptedSwarm(moved)
    again.port.sent += sorted(seen)
    known = {body_of(open_envelope(raw, now=None), PolicyManifest).version: raw for raw in seen}
    again.sampled |= known.keys()
    journal = again.learner._storage.journal
    for version, raw in known.items():
        assert journal.policies.of_version(version) == raw, "every version that anybody has seen is held"
    assert journal.ledger.height >= max((head.height for head in heads), default=0)
    again.learner.close()


def test_nothing_that_the_standby_lacks_is_published(fresh: Callable[[str], SmallRun], tmp_path: Path) -> None:
    """At every turn, what has left the learner is in the newest whole copy, once the standby keeps step."""
    small_run = fresh("run")
    swarm = FollowedSwarm(small_run, tmp_path / "second")
    in_step_turns = 0
    for _ in range(400):
        action = swarm.turn()
        if swarm.learner._followed._gate.keeps_step:
            in_step_turns += 1
            held = swarm.whole[-1].folder
            newest = _held_versions(held)
            assert manifests(swarm.port) <= newest
            heights = [head.height for head in swarm.port.bodies(Kind.LEDGER_HEAD)]
            assert max(heights, default=0) <= swarm.whole[-1].head.height
        if action is Action.FINISH:
            break
    assert in_step_turns > 10
    swarm.learner.close()


def _held_versions(copy: Path) -> set[bytes]:
    with closing(sqlite3.connect(f"file:{copy / 'journal.db'}?mode=ro&immutable=1", uri=True)) as database:
        return {bytes(raw) for (raw,) in database.execute("SELECT raw FROM policies")}


def test_a_standby_killed_between_any_two_answers_keeps_its_whole_copy(
    fresh: Callable[[str], SmallRun], tmp_path: Path
) -> None:
    small_run = fresh("run")
    swarm = FollowedSwarm(small_run, tmp_path / "second")
    rng = random.Random(1)
    for _ in range(300):
        before = newest_held(swarm.paths)
        if rng.random() < 0.2:
            swarm.start_standby()
            assert newest_held(swarm.paths) == before
        if swarm.turn() is Action.FINISH and len(swarm.whole) > 2:
            break
    copy = newest_held(swarm.paths)
    assert copy is not None
    assert held_copies.pieces_lacking(copy) == []
    swarm.learner.close()


def test_a_silent_standby_is_left_behind_and_its_promotion_refused(
    fresh: Callable[[str], SmallRun], tmp_path: Path
) -> None:
    small_run = fresh("run")
    swarm = FollowedSwarm(small_run, tmp_path / "second")
    while not swarm.learner._followed._gate.keeps_step:
        swarm.turn()
    gate = swarm.learner._followed._gate
    assert gate.keeps_step
    assert (small_run.directory / "following" / "in-step").exists()
    heard = HeardHeads(swarm.paths)
    gate._deadline -= 2 * SILENT_S + NOW  # the standby is silent from here on
    for _ in range(40):
        ScriptedSwarm.turn(swarm)
    assert not gate.holds
    assert not (small_run.directory / "following" / "in-step").exists()
    for raw in swarm.port.sent:
        heard.note(raw)
    swarm.learner.close()
    assert "version" in plan_promotion(swarm.paths).fault


@pytest.fixture
def followed(fresh: Callable[[str], SmallRun], tmp_path: Path) -> FollowedSwarm:
    """A standby that holds some copies; the learner is gone."""
    swarm = FollowedSwarm(fresh("run"), tmp_path / "second")
    while len(swarm.whole) < 6:
        swarm.turn()
    swarm.learner.close()
    return swarm


def _contents(run: Path, copy: HeldCopy) -> dict[str, bytes]:
    return {file.path: (run / file.path).read_bytes() for file in copy.listed.files}


def test_a_promotion_killed_at_every_step_goes_on(followed: FollowedSwarm, tmp_path: Path, monkeypatch: Any) -> None:
    copy = newest_held(followed.paths)
    assert copy is not None
    wanted = _contents(copy.folder, copy)
    (followed.paths.run / "checkpoints" / "step-00000099").mkdir(parents=True)
    (followed.paths.run / "checkpoints" / "step-00000099" / "old").write_bytes(b"of an older copy")
    pristine = tmp_path / "pristine"
    shutil.copytree(followed.paths.run, pristine)
    replace, steps = os.replace, len(copy.listed.files)

    for kill in range(steps + 1):
        shutil.rmtree(followed.paths.run)
        shutil.copytree(pristine, followed.paths.run)
        left = [kill]

        def dying(source: Any, target: Any, left: list[int] = left) -> None:
            if not left[0]:
                raise KilledError
            left[0] -= 1
            replace(source, target)

        monkeypatch.setattr(os, "replace", dying)
        if kill < steps:
            with pytest.raises(KilledError):
                promote(followed.paths, plan_promotion(followed.paths))
            with pytest.raises(ConfigError):
                refuse_standby(followed.paths)
        monkeypatch.setattr(os, "replace", replace)
        promote(followed.paths, plan_promotion(followed.paths))
        refuse_standby(followed.paths)
        assert _contents(followed.paths.run, copy) == wanted
        assert not (followed.paths.run / "checkpoints" / "step-00000099" / "old").exists()


def test_a_folder_to_follow_into_names_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "run.toml").touch()
    with pytest.raises(ConfigError, match=r"lacks run\.manifest, key\.json of the run"):
        follow_learner(tmp_path, NetworkOptions(), lan=False, peers=(), as_json=False)


def test_without_a_terminal_a_promotion_needs_a_yes(followed: FollowedSwarm, monkeypatch: Any) -> None:
    folder = SimpleNamespace(paths=followed.paths, lock=nullcontext)
    monkeypatch.setattr("p2prl.config.run_folder.open_folder", lambda _: folder)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(ConfigError, match="nobody is there to say"):
        promote_command(run=followed.paths.run, yes=False, as_json=True)
    assert is_standby(followed.paths)
    promote_command(run=followed.paths.run, yes=True, as_json=True)
    assert not is_standby(followed.paths)


def test_a_learner_stops_at_a_head_that_it_did_not_sign(fresh: Callable[[str], SmallRun]) -> None:
    small_run = fresh("run")
    swarm = ScriptedSwarm(small_run)
    for _ in range(8):
        swarm.turn()
    for raw in list(swarm.port.sent):
        swarm.deliver(raw)
    swarm.turn()  # its own come back: nothing happens
    head = LedgerHead(10_000, bytes(32), 3, False)
    swarm.deliver(seal(small_run.learner, head, run=small_run.run, now=NOW))
    with pytest.raises(IdentityError, match="another machine runs this learner"):
        swarm.turn()
    swarm.learner.close()


def _file(path: str, data: bytes = b"x") -> CopiedFile:
    return CopiedFile(path, len(data), chunk_digest(data))


def _head_of(raw: bytes) -> CopyHead:
    return CopyHead(1, len(raw), chunk_digest(raw), 0, 0, 0, 0)


@pytest.mark.parametrize(
    "paths",
    [
        ["../x"], ["/etc/x"], ["key.json"], ["KEY.json"], ["standby/followed"], ["a/../b"], ["a//b"], ["a/./b"], [""],
        [".ssh"], ["a\x00b"], ["a/b", "a"], ["a", "A"], ["a/" * 7 + "b"], ["a" * 300], ["run.manifest"], ["run.toml"],
        ["a\\b\n"], ["blobs/x.part"],
    ],
)  # fmt: skip
def test_a_list_names_files_of_a_run_folder_alone(tmp_path: Path, paths: list[str]) -> None:
    raw = write_list(CopyList(tuple(map(_file, paths))))
    copies = HeldCopies(LearnerPaths(tmp_path / "run"))
    with pytest.raises(RemoteProtocolError):
        copies.begin(_head_of(raw), raw)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_list_has_a_digest_for_every_piece() -> None:
    for changed in ({"size_bytes": -1}, {"size_bytes": 1 << 40}, {"pieces": b""}, {"pieces": bytes(33)}):
        raw = write_list(CopyList((msgspec.structs.replace(_file("blobs/x"), **changed),)))
        with pytest.raises(RemoteProtocolError):
            read_list(raw, _head_of(raw))


def test_wrong_bytes_are_never_written_and_end_the_copy(tmp_path: Path) -> None:
    raw = write_list(CopyList((_file("blobs/x", b"right"),)))
    follower = Follower(HeldCopies(LearnerPaths(tmp_path)), lambda _: b"", lambda _: pytest.fail("it is not whole"))
    now = 0.0
    follower.questions(now)
    follower.receive(signals.FollowArrived(1, -1, -1, msgspec.msgpack.encode(_head_of(raw))), now)
    follower.questions(now)
    follower.receive(signals.FollowArrived(1, -1, 0, raw), now)
    for _ in range(8):
        now += AGAIN_S
        follower.questions(now)
        follower.receive(signals.FollowArrived(1, 0, 0, b"wrong"), now)
    follower.questions(now + AGAIN_S)
    with pytest.raises(RemoteProtocolError):
        follower.receive(signals.FollowArrived(1, 0, 0, b"wrong"), now + AGAIN_S)
    assert (tmp_path / "standby" / "incoming" / "blobs" / "x").read_bytes() == bytes(5)
    assert newest_held(LearnerPaths(tmp_path)) is None


def test_secrets_and_settings_of_a_machine_are_not_copied() -> None:
    own = ("key.json", "run.toml", "lock", "standby/key.json", "following/copy/x", "status.json")
    assert not any(map(is_copied, own))
    assert all(map(is_copied, ("journal.db", "checkpoints/step-00000003/optimizer.safetensors", "blobs/chain/weights")))
