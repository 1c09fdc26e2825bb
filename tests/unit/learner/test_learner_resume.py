"""The learner killed between any two turns comes back to the same step, the same weights and the same promises."""

from __future__ import annotations

import errno
import functools
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from p2prl.algorithms.loss_selection import CHOICES, SelectionConfig
from p2prl.algorithms.registry import build_loss
from p2prl.errors import ConfigError, MachineError
from p2prl.learner.loss_pipeline import LossPipeline, LossPipelineConfig
from p2prl.learner.probation import ProbationConfig
from p2prl.learner.run_files import LearnerPaths
from p2prl.learner.schedule import Action
from p2prl.learner.service import Learner, LearnerConfig
from p2prl.learner.trainer import OptimiserConfig
from p2prl.models.group_work import GroupWork
from p2prl.models.pretrained import load_pretrained
from p2prl.models.text_codec import TextCodec
from p2prl.models.tiny_models import tiny_model
from p2prl.models.transformers_engine import TransformersEngine
from p2prl.models.warm_start import WarmstartConfig, warm_start
from p2prl.models.weight_layout import flatten
from p2prl.net.process import control
from p2prl.protocol import ledger_chain
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import body_of, open_envelope, seal
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import LedgerHead, Receipts, StorageReceipt
from p2prl.protocol.manifests import PolicyManifest
from p2prl.tasks.chain4 import demonstration
from tests.unit.learner.world import NOW, World, altered, identity

PEERS = (identity("one"), identity("two"))
UPDATES = 5


class FakeClock:
    """Moves, but not past a millisecond: what is signed, and so every slot's seed, depends on nothing but the run."""

    def __init__(self) -> None:
        self._ticks = itertools.count()

    def now(self) -> float:
        return NOW + next(self._ticks) * 1e-6


class Ear:
    """A network port that hands over what a test puts in and keeps what the learner says."""

    addresses = ("/ip4/127.0.0.1/tcp/1/p2p/x",)
    status = None

    def __init__(self) -> None:
        self.inbox: list[control.FromNetwork] = []
        self.said: list[bytes] = []
        self.pages: list[tuple[bytes, ...]] = []

    def send(self, message: control.ToNetwork) -> None:
        if isinstance(message, control.Publish):
            self.said.append(message.envelope)
        elif isinstance(message, control.SendLedger):
            self.pages.append(message.entries)

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        messages, self.inbox = self.inbox, []
        return messages

    def close(self) -> None:
        pass

    def bodies(self, kind: Kind) -> list[Any]:
        return [opened.body for raw in self.said if (opened := open_envelope(raw, now=None)).kind is kind]


@functools.cache
def learnt() -> Any:
    """Weights that now and then get a prompt right: without any reward there is no gradient, and nothing to resume."""
    loaded = tiny_model("chain4", seed=1)
    warm_start(loaded, demonstration, seed=1, config=WarmstartConfig(steps=80))
    return loaded.model.state_dict()


def learner(world: World, *, around: LossPipelineConfig | None = None, **changes: Any) -> Learner:
    """The run's learner, as a fresh process would build it."""
    checkpoints = sorted((world.directory / "checkpoints").glob("step-*"))
    made = load_pretrained(str(checkpoints[-1]), dtype="float32") if checkpoints else tiny_model(seed=1)
    if not checkpoints:
        made.model.load_state_dict(learnt())
    replaying = tiny_model(seed=1)
    config: dict[str, Any] = {
        "groups_per_update": 2,
        "updates": UPDATES,
        "checkpoint_every": 3,
        "optimiser": OptimiserConfig(learning_rate=1e-2, warmup_updates=1),
    } | changes
    return Learner(
        paths=LearnerPaths(world.directory),
        identity=world.learner,
        manifest=world.manifest,
        run=world.run,
        model=made.model,
        tokenizer=made.tokenizer,
        layout=world.layout,
        engine=TransformersEngine(replaying.model, world.layout),
        work=GroupWork(world.manifest, world.run, TextCodec(replaying.tokenizer, replaying.model)),
        estimator=LossPipeline(around or LossPipelineConfig(objectives={"gepo_t": build_loss("gepo_t")})),
        config=LearnerConfig(**config),
        clock=FakeClock(),
        random_bytes=lambda count: bytes([next(world.beacons)]) * count,
        on_metrics=lambda _: None,
        on_notice=lambda _: None,
    )


class Swarm:
    """Volunteers of the newest version, by hand: a group an update and peer, and a learner that may be killed."""

    def __init__(self, world: World, build: Callable[[], Learner]) -> None:
        self.world, self._build = world, build
        self.ear = Ear()
        self.learner = build()
        self.learner.attach(self.ear)
        self.worked: set[int] = set()
        self.actions: list[Action] = []

    def restart(self) -> None:
        self.learner.close()
        self.learner = self._build()
        self.learner.attach(self.ear)
        self.learner.introduce(self.ear)

    def turn(self) -> Action:
        for raw in list(self.ear.said):
            opened = open_envelope(raw, now=None)
            if opened.kind is Kind.POLICY_MANIFEST:
                policy = body_of(opened, PolicyManifest)
                if policy.version not in self.worked:
                    self.worked.add(policy.version)
                    shelved = self.world.shelf.add(raw)
                    for peer, slot in itertools.product(PEERS, range(self.world.manifest.publish_every)):
                        group = self.world.group(shelved, peer, slot)
                        self.ear.inbox.append(control.EnvelopeArrived(seal(peer, group, run=self.world.run, now=NOW)))
        self.actions.append(self.learner.turn(wait_s=0.0))
        return self.actions[-1]

    def weights(self) -> bytes:
        return bytes(flatten(self.learner._trainer.model, self.world.layout))


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[[str], World]]:
    made: list[World] = []

    def make(name: str) -> World:
        world = World(tmp_path / name)
        world.journal.close()  # the learner under test owns it
        made.append(world)
        return world

    yield make
    for world in made:
        world.blobs.close()


class KilledError(Exception):
    """Stands for SIGKILL: nothing after it runs."""


def run_through(
    world: World, kill: int | None, *, within_update: bool = False, build: Callable[[World], Learner] | None = None
) -> tuple[bytes, Swarm, int]:
    """Run to the end, killed before turn `kill`, or within it between the batch's record and its update."""
    swarm = Swarm(world, lambda: (build or learner)(world))
    for number in itertools.count():
        assert number < 60, "the run did not end"
        if number == kill and within_update:

            def die(_: object) -> None:
                raise KilledError

            swarm.learner._train = die  # type: ignore[method-assign,assignment]
            with suppress(KilledError):
                swarm.turn()
            swarm.restart()
        elif number == kill:
            swarm.restart()
        if swarm.turn() is Action.FINISH:
            weights = swarm.weights()
            swarm.learner.close()
            return weights, swarm, number
    raise AssertionError


@pytest.mark.parametrize("within_update", [False, True])
def test_a_learner_killed_at_any_turn_ends_with_the_same_weights(
    fresh: Callable[[str], World], within_update: bool
) -> None:
    straight, undisturbed, turns = run_through(fresh("straight"), None)
    assert straight != flatten(learner(fresh("start"))._trainer.model, undisturbed.world.layout), "it has learnt"
    steps = [turn for turn, action in enumerate(undisturbed.actions) if action is Action.STEP]
    assert len(steps) == UPDATES
    for kill in steps if within_update else range(turns + 1):
        world = fresh(f"killed-{kill}")
        weights, killed, _ = run_through(world, kill, within_update=within_update)
        assert weights == straight, f"killed at turn {kill}"
        manifests = {m.version: m for m in killed.ear.bodies(Kind.POLICY_MANIFEST)}
        assert sorted(manifests) == list(range(UPDATES + 1))
        digests = {raw for raw in killed.ear.said if open_envelope(raw, now=None).kind is Kind.POLICY_MANIFEST}
        assert len(digests) == UPDATES + 1, "one manifest a version, however often it was said"
        lines = [json.loads(line) for line in (world.directory / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(1, UPDATES + 1))


@pytest.mark.parametrize(("bound", "every"), [(0, 1), (2, 3)])
def test_a_learner_of_the_tightest_bound_killed_before_every_turn_loses_no_version(
    fresh: Callable[[str], World], bound: int, every: int
) -> None:
    """When a version is due, the newest is older than the bound allows groups to be."""
    world = fresh("killed")
    world.manifest = msgspec.structs.replace(world.manifest, staleness_bound=bound, publish_every=every)
    swarm = Swarm(world, lambda: learner(world))
    for number in itertools.count():
        assert number < 60, "the run did not end"
        swarm.restart()
        if swarm.turn() is Action.FINISH:
            break
    swarm.learner.close()
    said = {raw for raw in swarm.ear.said if open_envelope(raw, now=None).kind is Kind.POLICY_MANIFEST}
    manifests = [body_of(open_envelope(raw, now=None), PolicyManifest) for raw in said]
    steps = [*range(0, UPDATES, every), UPDATES]
    assert sorted((m.version, m.step) for m in manifests) == list(enumerate(steps)), "one manifest a version"
    lines = [json.loads(line) for line in (world.directory / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, UPDATES + 1))


def test_a_restart_frees_the_disk_of_versions_nobody_asks_for_any_more(fresh: Callable[[str], World]) -> None:
    world = fresh("run")
    world.manifest = msgspec.structs.replace(world.manifest, staleness_bound=1)
    swarm = Swarm(world, lambda: learner(world, checkpoint_every=1))
    while swarm.turn() is not Action.FINISH:
        pass
    blobs = world.directory / "blobs"
    (file, *_) = world.manifest.files
    for name in (file.blob.root.hex(), "ab" * 32 + ".new", "cd" * 32 + ".part", "notes.txt"):
        (blobs / name).write_bytes(b"left here")
    swarm.restart()
    swarm.learner.close()
    manifests = {m.version: m for m in swarm.ear.bodies(Kind.POLICY_MANIFEST)}
    window = [manifests[version] for version in (UPDATES - 1, UPDATES)]
    needed = {manifests[0].weights_digest, file.blob.root}
    needed |= {root for m in window for root in (m.weights.root, *(patch.blob.root for patch in m.patches))}
    assert {path.name for path in blobs.iterdir()} == {"notes.txt", *(root.hex() for root in needed)}


def test_probation_and_the_choice_of_a_loss_are_replayed_too(fresh: Callable[[str], World]) -> None:
    def careful(world: World) -> Learner:
        return learner(
            world,
            around=LossPipelineConfig(
                objectives={name: build_loss(name) for name in CHOICES},
                trust=ProbationConfig(probation_groups=3),
                selection=SelectionConfig(dwell_updates=2),
            ),
        )

    def outcome(name: str, kill: int | None) -> tuple[bytes, list[dict[str, Any]]]:
        world = fresh(name)
        weights, _, _ = run_through(world, kill, within_update=True, build=careful)
        return weights, [json.loads(line) for line in (world.directory / "metrics.jsonl").read_text().splitlines()]

    straight, lines = outcome("straight", None)
    assert [line["probation_groups"] for line in lines] == [2, 2, 2, 0, 0], "two peers, one group an update each"
    assert len({line["loss_name"] for line in lines}) > 1
    for kill in (5, 8):
        weights, again = outcome(f"killed-{kill}", kill)
        assert weights == straight
        assert [line["loss_name"] for line in again] == [line["loss_name"] for line in lines]


def test_with_a_dead_band_it_publishes_the_same_words_and_believes_who_sampled_them(
    fresh: Callable[[str], World],
) -> None:
    band_ulp = 1 << 21  # a quarter of a binade: at this test's learning rate some words leave it and some do not

    def banded(world: World) -> Learner:
        return learner(world, dead_band_ulp=band_ulp)

    def outcome(name: str, kill: int | None, build: Callable[[World], Learner]) -> tuple[bytes, list[bytes], Swarm]:
        world = fresh(name)
        weights, swarm, _ = run_through(world, kill, build=build)
        manifests = {m.version: m for m in swarm.ear.bodies(Kind.POLICY_MANIFEST)}
        roots = [manifests[version].weights.root for version in range(UPDATES + 1)]
        return weights, [world.blobs.path(root).read_bytes() for root in roots], swarm

    weights, published, swarm = outcome("straight", None, banded)
    shares = []
    for before, after in itertools.pairwise(np.frombuffer(words, dtype="<u4").astype(np.int64) for words in published):
        same_sign = before >> 31 == after >> 31
        steps = np.abs(after - before)[same_sign]
        assert np.array_equal(steps <= band_ulp, steps == 0)
        shares.append(np.count_nonzero(steps) / len(steps))
    assert 0.0 < max(shares) < 0.9
    receipts = [receipt for body in swarm.ear.bodies(Kind.RECEIPTS) for receipt in body.receipts]
    assert len(receipts) >= UPDATES * 2
    assert not any(receipt.reason for receipt in receipts), "what volunteers sample with is what is replayed"
    _, whole, _ = outcome("unbanded", None, learner)
    assert published[0] == whole[0]
    assert published[-1] != whole[-1]
    assert weights != published[-1], "the training weights are not those that are published"
    for kill in (2, 5, 9):
        assert outcome(f"killed-{kill}", kill, banded)[:2] == (weights, published)


def test_what_it_signs_adds_up(fresh: Callable[[str], World]) -> None:
    world = fresh("run")
    _, swarm, _ = run_through(world, None)
    stored = {name for receipt in swarm.ear.bodies(Kind.STORAGE_RECEIPT) for name in receipt.groups}
    verified = {r.group for body in swarm.ear.bodies(Kind.RECEIPTS) for r in body.receipts if not r.reason}
    assert verified <= stored
    assert len(verified) >= UPDATES * 2
    heads = swarm.ear.bodies(Kind.LEDGER_HEAD)
    assert [head.height for head in heads] == sorted(head.height for head in heads)
    assert not any(head.finished for head in heads)
    assert all(isinstance(head, LedgerHead) for head in heads)
    assert all(isinstance(body, Receipts | StorageReceipt) for body in swarm.ear.bodies(Kind.RECEIPTS))


def test_a_page_of_its_ledger_follows_the_chain(fresh: Callable[[str], World]) -> None:
    world = fresh("run")
    swarm = Swarm(world, lambda: learner(world))
    while swarm.turn() is not Action.FINISH:
        pass
    swarm.ear.inbox.append(control.LedgerWanted("peer", 0))
    swarm.turn()
    (page,) = swarm.ear.pages
    head: Digest = ledger_chain.GENESIS
    for height, raw in enumerate(page):
        _, head = ledger_chain.follow(raw, height=height, head=head, run=world.run, learner=world.learner.public_key)
    newest = swarm.ear.bodies(Kind.LEDGER_HEAD)[-1]
    assert (newest.height, newest.head) == (len(page), head)
    swarm.learner.close()


def test_a_repeated_group_is_answered_again_and_counted_once(fresh: Callable[[str], World]) -> None:
    world = fresh("run")
    swarm = Swarm(world, lambda: learner(world))
    for _ in range(3):
        swarm.turn()
    (first, *_) = swarm.ear.bodies(Kind.STORAGE_RECEIPT)
    before = len(swarm.ear.bodies(Kind.STORAGE_RECEIPT))
    group = swarm.world.group(world.shelf.add(swarm.ear.said[0]), PEERS[0], 0)
    swarm.ear.inbox.append(control.EnvelopeArrived(seal(PEERS[0], group, run=world.run, now=NOW)))
    swarm.turn()
    assert len(swarm.ear.bodies(Kind.STORAGE_RECEIPT)) == before + 1
    mine = [r for body in swarm.ear.bodies(Kind.RECEIPTS) for r in body.receipts if r.group in first.groups]
    assert len({r.group for r in mine}) == len(mine)
    swarm.learner.close()


def test_groups_of_no_policy_and_floods_of_one_peer_are_not_taken_in(
    fresh: Callable[[str], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2prl.protocol.limits.MAX_UNCHECKED_GROUPS_PER_PEER", 3)
    world = fresh("run")
    swarm = Swarm(world, lambda: learner(world))
    while not swarm.worked:
        swarm.turn()
    policy = world.shelf.newest
    assert policy is not None
    honest = [world.group(policy, identity("flood"), slot) for slot in range(5)]
    alien = world.sealed(altered(honest[0], policy=b"x" * 32), identity("alien"))
    flood = [world.sealed(group, identity("flood")) for group in honest]
    swarm.ear.inbox = [control.EnvelopeArrived(stored.raw) for stored in (alien, *flood)]
    swarm.ear.said.clear()
    swarm.learner._listen(0.0)
    answered = [name for receipt in swarm.ear.bodies(Kind.STORAGE_RECEIPT) for name in receipt.groups]
    assert answered == [stored.digest for stored in flood[:3]]
    assert swarm.learner.turned_away() == {"unknown_policy": 1, "too_many": 2}
    swarm.learner.close()


def test_a_line_of_metrics_that_a_crash_cut_off_is_written_again(fresh: Callable[[str], World]) -> None:
    world = fresh("run")
    swarm = Swarm(world, lambda: learner(world))
    while swarm.learner.step < 2:
        swarm.turn()
    path = world.directory / "metrics.jsonl"
    whole = path.read_text()
    path.write_text(whole[:-20])
    swarm.restart()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[1]["loss"] == json.loads(whole.splitlines()[1])["loss"]
    swarm.learner.close()


def test_a_full_disk_under_the_metrics_loses_nothing(
    fresh: Callable[[str], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, _, _ = run_through(fresh("straight"), None)
    world = fresh("full")
    swarm = Swarm(world, lambda: learner(world))
    while swarm.learner.step < 2:
        swarm.turn()
    honest = Path.open

    def full(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == "metrics.jsonl":
            raise OSError(errno.ENOSPC, "No space left on device")
        return honest(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full)
        with pytest.raises(MachineError, match="No space left") as caught:
            list(iter(swarm.turn, Action.FINISH))
    assert "Free some space" in caught.value.remedy
    swarm.restart()
    while swarm.turn() is not Action.FINISH:
        pass
    assert swarm.weights() == straight
    lines = [json.loads(line) for line in (world.directory / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, UPDATES + 1))
    swarm.learner.close()


def test_a_crash_of_the_shelfs_window_does_not_make_late_work_a_cheat(fresh: Callable[[str], World]) -> None:
    world = fresh("run")
    swarm = Swarm(world, lambda: learner(world, updates=UPDATES + 4))
    late = None
    while swarm.learner.step < UPDATES + 2:
        swarm.turn()
        late = late or control.EnvelopeArrived(
            seal(
                PEERS[0],
                world.group(world.shelf.add(swarm.ear.said[0]), PEERS[0], 7),
                run=world.run,
                now=NOW,
            )
        )
    swarm.restart()
    assert late is not None
    swarm.ear.inbox.append(late)
    for _ in range(4):
        swarm.turn()
    (receipt,) = [r for body in swarm.ear.bodies(Kind.RECEIPTS) for r in body.receipts if r.slot == 7]
    assert receipt.reason == "too_stale"
    swarm.learner.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("groups_per_update", 0),
        ("checkpoint_every", 0),
        ("chunk_pieces", 0),
        ("updates", -1),
        ("ready_updates", 0.5),
        ("dead_band_ulp", -1),
        ("dead_band_ulp", (1 << 23) + 1),
    ],
)
def test_impossible_learner_settings_are_named(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        LearnerConfig(**{name: value})  # type: ignore[arg-type]
    assert caught.value.remedy
