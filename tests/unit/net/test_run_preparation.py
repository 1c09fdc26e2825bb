"""Bootstrap of a run with a base model, and the messages about that base."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from p2prl.errors import IntegrityError, MachineError, RefusedRunError, RemoteProtocolError
from p2prl.net.process import bridge, control
from p2prl.net.process.run_preparation import RunPreparation
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import seal
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import DataSet, RunManifest, TaskShare, blob_of
from p2prl.swarm import signals
from p2prl.swarm.events import BaseReleased
from tests.unit.learner.small_run import SmallRun

STATE = Digest(bytes(range(32)))
EMPTY_STATUS = control.Status((), 0, 0, 0, 0, (-1, 0, 0), 0, 0)


class InboxPort:
    """A network port that records the messages it gets."""

    addresses: tuple[str, ...] = ()
    status = None

    def __init__(self) -> None:
        self.told: list[control.ToNetwork] = []

    def send(self, message: control.ToNetwork) -> None:
        self.told.append(message)

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        return []

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SmallRun]:
    made = SmallRun(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("found", [STATE, b""])
def test_the_base_is_looked_for_before_the_engine_is_built_and_reported_once(world: SmallRun, found: bytes) -> None:
    done: list[str] = []

    def find(manifest: RunManifest) -> bytes:
        assert manifest == world.manifest
        done.append("base")
        return found

    preparation: RunPreparation[None] = RunPreparation(
        lambda _, __: done.append("engine"), lambda _, __: done.append("shown"), find
    )
    port = InboxPort()
    preparation.answer(port)
    assert port.told == [], "the run is not known yet"
    preparation.take(control.RunKnown(world.manifest_raw))
    for file in world.manifest.files:
        preparation.take(control.FileReady(file.name, "/nowhere"))
    preparation.take(control.RunKnown(world.manifest_raw))
    preparation.answer(port)
    preparation.answer(port)
    assert done[:3] == ["shown", "base", "engine"]
    assert done.count("base") == 1
    assert port.told == [signals.RunAccepted(0), signals.StartFrom(found)]


def test_without_a_base_nothing_is_reported(world: SmallRun) -> None:
    preparation: RunPreparation[None] = RunPreparation(lambda _, __: None, lambda _, __: None)
    port = InboxPort()
    preparation.take(control.RunKnown(world.manifest_raw))
    preparation.answer(port)
    preparation.answer(port)
    assert port.told == [signals.RunAccepted(0)]


def test_a_run_is_accepted_with_the_disk_it_may_use(world: SmallRun) -> None:
    preparation: RunPreparation[None] = RunPreparation(lambda _, __: None, lambda _, __: 7_000)
    port = InboxPort()
    preparation.take(control.RunKnown(world.manifest_raw))
    preparation.answer(port)
    assert port.told == [signals.RunAccepted(7_000)]


def test_a_run_that_its_owner_refuses_is_not_accepted(world: SmallRun) -> None:
    def refuse(manifest: RunManifest, raw: bytes) -> int:
        raise MachineError("too large")

    preparation: RunPreparation[None] = RunPreparation(lambda _, __: None, refuse)
    port = InboxPort()
    with pytest.raises(MachineError):
        preparation.take(control.RunKnown(world.manifest_raw))
    preparation.answer(port)
    assert port.told == []


@pytest.mark.parametrize("error", [RemoteProtocolError("code"), IntegrityError("another layout")])
def test_files_that_cannot_be_used_refuse_the_run(world: SmallRun, error: Exception) -> None:
    def prepare(manifest: RunManifest, files: object) -> None:
        raise error

    preparation: RunPreparation[None] = RunPreparation(prepare, lambda _, __: None)
    preparation.take(control.RunKnown(world.manifest_raw))
    *others, last = [control.FileReady(file.name, "/nowhere") for file in world.manifest.files]
    for file in others:
        preparation.take(file)
    with pytest.raises(RefusedRunError, match=f"this run is refused: {error}") as caught:
        preparation.take(last)
    assert caught.value.exit_code == 10


@pytest.mark.parametrize(
    ("settled", "words"),
    [
        (BaseReleased(STATE, True, 64, 23_000_000, 512_000_000), "saved 512.0 MB: version 64 took 23.0 MB"),
        (BaseReleased(STATE, True, 0, 0, 512_000), "saved 512.0 kB: version 0 is the base itself"),
        (BaseReleased(STATE, True, 64, 0, 0), "not needed: it does not shorten the route to version 64"),
        (BaseReleased(STATE, None, 64, 0, 0), "not needed: it does not shorten the route to version 64"),
        (BaseReleased(STATE, None, None, 0, 0), "could not be used"),
        (BaseReleased(STATE, False, None, 0, 0), "not the model this run started from"),
    ],
)
def test_the_outcome_of_the_base_is_reported(settled: BaseReleased, words: str) -> None:
    told = bridge.message_of(settled, path_of=lambda root: Path(root.hex()), status=lambda: EMPTY_STATUS)
    assert isinstance(told, control.Warned)
    assert words in told.message


@pytest.mark.parametrize(
    ("role", "runs_code", "awaited"),
    [
        (Role.VOLUNTEER, False, {"prompts/sums"}),
        (Role.VALIDATOR, False, {"prompts/sums"}),
        (Role.VALIDATOR, True, {"prompts/sums", "answers/sums", "code/sums"}),
    ],
)
def test_work_starts_with_the_data_of_the_role(world: SmallRun, role: Role, runs_code: bool, awaited: set[str]) -> None:
    blob = blob_of(b"x", 4096)
    data = DataSet("sums", 3, blob, blob, "{}", blob)
    tasks = (*world.manifest.tasks, TaskShare("sums", 1.0))
    manifest = msgspec.structs.replace(world.manifest, tasks=tasks, data_sets=(data,))
    prepared: list[set[str]] = []
    preparation: RunPreparation[None] = RunPreparation(
        lambda _, files: prepared.append(set(files)), lambda _, __: None, role=role, runs_code=runs_code
    )
    preparation.take(control.RunKnown(seal(world.learner, manifest, run=bytes(32), now=1.0)))
    names = {file.name for file in manifest.files} | awaited
    for name in sorted(names):
        assert prepared == []
        preparation.take(control.FileReady(name, "/nowhere"))
    assert prepared == [names]
