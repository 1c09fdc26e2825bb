"""`p2prl rollouts`: what a run was trained on, read from the journal of a real run folder, and its parts recomputed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2prl.config.new_run import RunFolder, open_run, run_file_blobs
from p2prl.config.run_data import folder_data
from p2prl.errors import ConfigError
from p2prl.learner.journal.groups import StoredGroup
from p2prl.learner.journal.journal import Journal
from p2prl.models.groups.group_work import GroupWork
from p2prl.models.run_model import read_run_model
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.protocol.digests import digest
from p2prl.protocol.envelope import body_of, envelope_digest, open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.manifests import PolicyManifest, blob_of
from p2prl.protocol.rollout_group import Completion, EngineClass, RolloutGroup
from p2prl.protocol.work_slots import SEED_RULE
from tests.command_doc import json_keys
from tests.unit.cli.invocation import invoke, json_of

NOW = 1_800_000_000.0
OWN = """
def tidy(prompts, completions, **columns):
    return [float(len(text) == 1) for text in completions]
"""
ANSWERS = ("3", "31", "4", "")
"""Of each group. The first is right, the first and the third are tidy, and the second has three tokens with its end."""
WORTH = (2.5, -1.0, 0.5, 0.0)


class Trained:
    """A run folder whose journal has updates of known groups."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        manifest = folder.manifest
        model = read_run_model(
            {file.name: content for file, content in run_file_blobs(folder)},
            layout_digest=manifest.layout,
            weight_bytes=manifest.weight_bytes,
            dtype=manifest.engine_dtype,
        )
        self.codec = model.codec()
        self.work = GroupWork(manifest, folder.run, self.codec, folder_data(folder).tasks)
        self.journal = Journal(folder.paths.journal)
        self._previous = b""
        published = self.journal.policies.since_step(0)
        self.policies = [
            (envelope_digest(raw), body_of(open_envelope(raw, now=None), PolicyManifest)) for raw in published
        ]

    def publish(self, step: int) -> None:
        version = len(self.policies)
        ref = blob_of(bytes(self.folder.manifest.weight_bytes), 4096)
        beacon = digest("p2prl/test-beacon", bytes([version]))
        manifest = PolicyManifest(version, step, ref, bytes(32), self._previous, beacon, int(NOW * 1000))
        raw = seal(self.folder.identity, manifest, run=self.folder.run, now=NOW)
        self._previous = envelope_digest(raw)
        self.policies.append((self._previous, manifest))
        with self.journal.transaction():
            self.journal.policies.add(version, step, raw)

    def group(
        self,
        peer: Identity,
        *,
        version: int,
        slot: int,
        rewards: Sequence[float],
        answers: Sequence[str] = ANSWERS,
        old: bool = False,
    ) -> bytes:
        """A verified group of these answers and rewards. With `old` its release drew other prompts."""
        policy, manifest = self.policies[version]
        assignment = self.work.assign(beacon=manifest.beacon, peer=peer.public_key, slot=slot)
        prompts = (
            self.work.assign(beacon=manifest.beacon, peer=peer.public_key, slot=other).prompt_ids for other in range(99)
        )
        prompt = next(ids for ids in prompts if (ids != assignment.prompt_ids) == old)
        stop = min(self.codec.stop_ids)
        longest = self.folder.manifest.sampling.max_new_tokens
        completions = []
        for text in answers:
            ids = self.codec.encode(text, rendered=True) if text else ()
            ids = (*ids, stop) if len(ids) < longest else ids
            tokens, logprobs = np.asarray(ids, dtype="<u4").tobytes(), np.zeros(len(ids), dtype="<f2").tobytes()
            completions.append(Completion(tokens, logprobs, ids[-1] == stop, 0.0))
        group = RolloutGroup(
            version=version,
            policy=policy,
            slot=slot,
            task=assignment.task,
            prompt=np.asarray(prompt, dtype="<u4").tobytes(),
            completions=tuple(completions),
            engine=EngineClass("test", "1", "float32", "cpu"),
            seconds=0.5,
            seeds=1 if old else SEED_RULE,
        )
        raw = seal(peer, group, run=self.folder.run, now=NOW)
        stored = StoredGroup(envelope_digest(raw), peer.public_key, version, slot, raw, b"", b"")
        behavior = np.zeros(sum(len(each.tokens) // 4 for each in completions), dtype="<f4").tobytes()
        with self.journal.transaction():
            self.journal.groups.store(stored, NOW)
            self.journal.groups.mark_verified(
                stored.digest, behavior=behavior, rewards=np.asarray(rewards, dtype="<f4").tobytes()
            )
        return stored.digest

    def train(self, step: int, *digests: bytes) -> None:
        with self.journal.transaction():
            self.journal.batches.begin(step, list(digests))


ANN, BOB = (Identity(digest("p2prl/test-identity", name.encode())[:16]) for name in ("ann", "bob"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of rows with two scorers and a length penalty: three updates, of one, two and one groups."""
    place = tmp_path_factory.mktemp("rollouts")
    made = tiny_model("chain4", seed=3)
    made.model.save_pretrained(place / "model")
    made.tokenizer.save_pretrained(place / "model")
    (place / "own.py").write_text(OWN)
    rows = [{"prompt": f"{first}+{3 - first}=", "answer": "3"} for first in range(4)]
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = [
        "--data",
        f"sums={place / 'rows.jsonl'}",
        "--scorer",
        "2*exact",
        "--scorer",
        f"0.5*{place / 'own.py'}:tidy",
    ]
    options += ["--length-penalty", "3:1", "--model", str(place / "model"), "--group-size", "4", "--in", str(place)]
    done = invoke("init", "sums", *options, "--probe", "off", "--max-new-tokens", "3")
    assert done.exit_code == 0, (done.output, done.exception)
    world = Trained(open_run(place / "sums"))
    world.publish(0)
    world.publish(2)
    first = world.group(ANN, version=0, slot=0, rewards=WORTH)
    second = world.group(BOB, version=0, slot=0, rewards=WORTH)
    third = world.group(ANN, version=0, slot=1, rewards=(2.5,) * 4, answers=("3",) * 4)
    fourth = world.group(ANN, version=1, slot=2, rewards=WORTH)
    world.train(0, first)
    world.train(1, second, third)
    world.train(2, fourth)
    world.journal.close()
    return place / "sums"


def shown(run: Path, *options: object) -> list[dict[str, Any]]:
    rollouts: list[dict[str, Any]] = json_of("rollouts", run, *options)["rollouts"]
    return rollouts


def test_the_newest_come_first_with_all_that_is_known_of_them(trained: Path) -> None:
    document = json_of("rollouts", trained)
    assert set(document) == json_keys("p2prl rollouts")
    assert document["kept"] == {"updates": 3, "first_step": 1, "last_step": 3}
    rows = document["rollouts"]
    assert [row["step"] for row in rows] == [3, 3, 3, 3, 2, 2, 2, 2]
    first, second, third, fourth = rows[:4]
    assert first["prompt"].removeprefix("<b>") in {f"{a}+{3 - a}=" for a in range(4)}
    assert [row["completion"] for row in rows[:4]] == list(ANSWERS)
    assert [row["reward"] for row in rows[:4]] == list(WORTH)
    assert (first["version"], first["staleness"], first["peer"], first["task"]) == (1, 0, ANN.peer_id, "sums")
    assert (first["tokens"], first["finished"], second["tokens"]) == (2, True, 3)
    assert first["parts"] == {"exact": 2.0, "tidy": 0.5, "length": 0.0}
    assert second["parts"] == {"exact": 0.0, "tidy": 0.0, "length": -1.0}
    assert third["parts"] == {"exact": 0.0, "tidy": 0.5, "length": 0.0}
    assert sum(fourth["parts"].values()) == 0.0
    assert rows[4]["staleness"] == 1, "sampled by version 0, trained on at the second update"


def test_parts_add_up_to_the_reward_and_advantages_to_nothing(trained: Path) -> None:
    rows = shown(trained, "--count", 100)
    assert len(rows) == 16
    for row in rows:
        assert sum(row["parts"].values()) == pytest.approx(row["reward"])
    by_group: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_group.setdefault(row["group"], []).append(row)
    assert len(by_group) == 4
    for group in by_group.values():
        mean = np.mean([row["reward"] for row in group])
        assert [row["advantage"] for row in group] == pytest.approx([row["reward"] - mean for row in group])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--worst", "-n", 3), [-1.0, -1.0, -1.0]),
        (("--best", "-n", 8), [2.5] * 7 + [0.5]),
        (("--step", 1), list(WORTH)),
        (("--step", 2, "--peer", BOB.peer_id), list(WORTH)),
        (("--step", 3, "--peer", BOB.peer_id), []),
    ],
)
def test_rollouts_are_chosen(trained: Path, options: tuple[object, ...], expected: list[float]) -> None:
    assert [row["reward"] for row in shown(trained, *options)] == expected


def test_a_seed_draws_the_same_rollouts(trained: Path) -> None:
    draws = [
        [(row["group"], row["completion"]) for row in shown(trained, "--random", "--seed", seed)] for seed in (1, 1, 2)
    ]
    assert draws[0] == draws[1] != draws[2]
    assert len(set(draws[0])) > 4


def test_people_read_it(trained: Path) -> None:
    text = invoke("rollouts", trained, "-n", 2).stdout
    assert f"update 3  sums  v1, 0 updates old  from {ANN.peer_id}" in text
    assert "completion 31" in text
    assert "reward     -1 = exact 0, tidy 0, length -1; advantage -1.5" in text


@pytest.mark.parametrize(
    ("options", "message", "remedy"),
    [
        (("--step", 9), "update 9 are not kept", "3 updates from 1 to 3"),
        (("--task", "poems"), "no task 'poems'", "sums"),
        (("--peer", "ann"), "not an Ed25519 peer id", "52 characters"),
        (("--best", "--worst"), "exclude each other", "one of"),
    ],
)
def test_a_wrong_choice_is_refused(trained: Path, options: tuple[object, ...], message: str, remedy: str) -> None:
    error = invoke("rollouts", trained, *options).exception
    assert isinstance(error, ConfigError)
    assert message in str(error)
    assert remedy in error.remedy


def test_groups_leave_when_newer_ones_fill_the_room_and_no_restart_needs_them(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    with closing(Journal(run / "journal.db")) as journal:
        (size,) = journal._db.execute(
            "SELECT LENGTH(raw) + LENGTH(behavior) FROM groups WHERE used_step = 1 LIMIT 1"
        ).fetchone()
        with journal.transaction():
            journal.batches.forget_before(0)
            assert journal.batches.kept_steps() == [0, 1, 2]
            journal.batches.forget_before(2, keep_bytes=100 * size)
            assert journal.batches.kept_steps() == [0, 1, 2], "there is room for all"
            journal.batches.forget_before(2, keep_bytes=int(2.5 * size))
            assert journal.batches.kept_steps() == [1, 2], "for the two groups of the update before"
            journal.batches.forget_before(2)
            assert journal.batches.kept_steps() == [2], "a restart at step 2 needs its batch"
            journal.batches.forget_before(3)
            assert journal.batches.kept_steps() == []
    assert "trained on nothing that is kept" in str(invoke("rollouts", run).exception)


def test_groups_of_an_earlier_release_are_shown_without_parts(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    world = Trained(open_run(run))
    old = world.group(BOB, version=0, slot=7, rewards=WORTH, old=True)
    world.train(3, old)
    world.journal.close()
    rows = shown(run, "--step", 4)
    assert [(row["completion"], row["reward"], row["parts"]) for row in rows] == [
        (text, reward, {}) for text, reward in zip(ANSWERS, WORTH, strict=True)
    ]
