"""Data of a run on disk: served without a copy, refused when changed, and opened as far as a role needs it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from p2prl.config import run_data
from p2prl.config.run_data import downloaded_data, environments_of, folder_data, seeded_tasks, serve_data
from p2prl.config.run_folder import Folder
from p2prl.confinement.layers import ALL_LAYERS, LANDLOCK, NAMESPACE, SECCOMP
from p2prl.errors import ConfigError, IntegrityError, RemoteProtocolError
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.protocol.identity import Identity
from p2prl.protocol.manifests import DataSet, RunFile, RunManifest, TaskShare, blob_of
from p2prl.protocol.run_blobs import is_third_party
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.tasks.data.packed_data import file_blob, prompt_record, row_record
from p2prl.tasks.sandbox.pool import PoolConfig, Protection
from p2prl.tasks.scorers.spec import Reward, Scoring, scoring_spec
from p2prl.tasks.wasm.runtime import from_text
from tests.unit.models.data_run import pack
from tests.unit.tasks.wasm.written_modules import module

KEY = Identity(bytes(16))
EXACT = scoring_spec(Scoring(rewards=(Reward(scorer="exact"),)))
CODE = b"def score(prompts, completions, **columns):\n    return [1.0 for _ in completions]\n"
ROWS = [{"prompt": f"{a}+1=", "answer": str(a + 1)} for a in range(7)]


@dataclass
class RunOnDisk:
    """A run folder with two data tasks, one with a scorer of its own."""

    folder: Folder
    manifest: RunManifest

    def place(self, task: str) -> Path:
        return self.folder.directory / "data" / task


@pytest.fixture
def run(tmp_path: Path) -> RunOnDisk:
    data_sets = []
    for task, code in (("plain", b""), ("own", CODE)):
        place = tmp_path / "run" / "data" / task
        place.mkdir(parents=True)
        pack(place / "prompts.packed", [prompt_record([1, number]) for number in range(7)])
        pack(place / "rows.packed", [row_record(row) for row in ROWS])
        pack(place / "held_out_prompts.packed", [prompt_record([9])] * 2)
        pack(place / "held_out_rows.packed", [row_record(ROWS[0])] * 2)
        if code:
            (place / "scorer.py").write_bytes(code)
        prompts, rows = ((place / name).read_bytes() for name in ("prompts.packed", "rows.packed"))
        data_sets.append(
            DataSet(
                task,
                7,
                blob_of(prompts, 4096),
                blob_of(rows, 4096),
                EXACT,
                blob_of(code, 4096) if code else None,
                held_out=file_blob(place / "held_out_rows.packed").root if task == "plain" else b"",
            )
        )
    bare = run_manifest_of(KEY)
    tasks = (TaskShare("chain4", 1.0), TaskShare("plain", 1.0), TaskShare("own", 1.0))
    manifest = msgspec.structs.replace(bare, tasks=tasks, data_sets=tuple(data_sets))
    return RunOnDisk(Folder(tmp_path / "run", KEY, manifest, b""), manifest)


def test_the_learner_reads_everything(run: RunOnDisk) -> None:
    data = folder_data(run.folder)
    assert data.tasks["plain"].training.prompts.token_ids(3) == (1, 3)
    assert data.tasks["plain"].training.rows is not None
    assert data.tasks["plain"].training.rows.row(3) == ROWS[3]
    held_out = data.tasks["plain"].held_out
    assert held_out is not None
    assert (len(held_out.prompts), held_out.prompts.token_ids(1)) == (2, (9,))
    assert data.tasks["own"].held_out is None, "the manifest names none"
    assert {task: (scoring.spec, scoring.code) for task, scoring in data.scoring.items()} == {
        "plain": (EXACT, None),
        "own": (EXACT, run.place("own") / "scorer.py"),
    }


@pytest.mark.parametrize("file", ["prompts.packed", "rows.packed", "held_out_rows.packed"])
def test_a_missing_file_is_named(run: RunOnDisk, file: str) -> None:
    (run.place("plain") / file).unlink()
    with pytest.raises(ConfigError, match="data cannot be used") as caught:
        folder_data(run.folder)
    assert str(run.place("plain")) in caught.value.remedy


def brought(run: RunOnDisk, content: bytes) -> RunManifest:
    """The run with an environment that it brings."""
    (run.folder.directory / "files").mkdir()
    (run.folder.directory / "files" / "game.wasm").write_bytes(content)
    files = (RunFile("game.wasm", blob_of(content, 4096)),)
    return msgspec.structs.replace(run.manifest, files=files, tasks=(*run.manifest.tasks, TaskShare("game", 1.0)))


def test_an_environment_is_compiled_where_it_is_needed(run: RunOnDisk) -> None:
    pytest.importorskip("wasmtime", reason="needs the extra agents")
    manifest = brought(run, module())
    folder = Folder(run.folder.directory, KEY, manifest, b"")
    here = folder_data(folder).environments["game"]
    assert (here.name, here.opening(5)) == ("game", "hello")
    names = [task.name for task in seeded_tasks(manifest, {"game": here})]
    assert names == ["chain4", "game"]
    place = folder.directory / "files" / "game.wasm"
    place.write_bytes(module(step="(i64.const 5)"))
    with pytest.raises(ConfigError, match=r"game\.wasm is not the file that the run's manifest names"):
        folder_data(folder)
    place.unlink()
    with pytest.raises(ConfigError, match="data cannot be used"):
        folder_data(folder)


def test_a_module_that_is_no_environment_is_a_refused_run(run: RunOnDisk) -> None:
    pytest.importorskip("wasmtime", reason="needs the extra agents")
    manifest = brought(run, from_text(b'(module (import "env" "now" (func)))'))
    with pytest.raises(RemoteProtocolError, match=r"the environment game cannot be used: it imports env\.now"):
        environments_of(manifest, {"game.wasm": run.folder.directory / "files" / "game.wasm"})


def test_other_held_out_rows_are_refused(run: RunOnDisk) -> None:
    place = run.place("plain") / "held_out_rows.packed"
    pack(place, [row_record(ROWS[1])] * 2)
    with pytest.raises(ConfigError, match=r"held_out_rows\.packed is not the file that the run's manifest names"):
        folder_data(run.folder)


def test_data_is_served_without_a_second_copy(run: RunOnDisk, tmp_path: Path) -> None:
    blobs, told = DiskBlobStore(tmp_path / "blobs"), list[str]()
    for _ in range(2):  # a restart finds it there
        serve_data(run.folder, blobs, told.append)
    own = run.manifest.data_sets[1]
    assert own.code is not None
    for ref, file in ((own.prompts, "prompts.packed"), (own.answers, "rows.packed"), (own.code, "scorer.py")):
        assert blobs.path(ref.root).samefile(run.place("own") / file)
        assert blobs.begin(ref) == set(range(ref.total))
    blobs.close()
    assert told == []


@pytest.mark.parametrize("file", ["prompts.packed", "rows.packed", "scorer.py"])
def test_changed_data_is_not_served(run: RunOnDisk, tmp_path: Path, file: str) -> None:
    path = run.place("own") / file
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    path.write_bytes(changed)
    with pytest.raises(ConfigError, match="not the file that the run's manifest names") as caught:
        serve_data(run.folder, DiskBlobStore(tmp_path / "blobs"), lambda _: None)
    assert "Other data is another run" in caught.value.remedy
    path.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        serve_data(run.folder, DiskBlobStore(tmp_path / "blobs"), lambda _: None)


@pytest.mark.parametrize("task", ["../plain", "a/b", "..", "."])
def test_a_task_never_names_a_folder_elsewhere(run: RunOnDisk, task: str) -> None:
    elsewhere = msgspec.structs.replace(run.manifest.data_sets[0], task=task)
    manifest = msgspec.structs.replace(run.manifest, data_sets=(elsewhere,))
    with pytest.raises(ConfigError, match="has no folder"):
        folder_data(Folder(run.folder.directory, KEY, manifest, b""))


def downloads(run: RunOnDisk, *parts: str) -> Mapping[str, Path]:
    """Downloaded blobs by name; names like `prompts/plain`."""
    files = {"prompts": "prompts.packed", "answers": "rows.packed", "code": "scorer.py"}
    return {name: run.place(name.partition("/")[2]) / files[name.partition("/")[0]] for name in parts}


def test_a_volunteer_opens_prompts_alone(run: RunOnDisk) -> None:
    files = downloads(run, "prompts/plain", "prompts/own")
    data = downloaded_data(run.manifest, files, scores=False, runs_scorer=False)
    assert [(held.training.rows, held.held_out) for held in data.tasks.values()] == [(None, None)] * 2
    assert data.scoring == {}
    assert data.start_scorers() is None


def test_a_validator_scores_what_its_owner_agreed_to(run: RunOnDisk) -> None:
    files = downloads(run, "prompts/plain", "prompts/own", "answers/plain")
    cautious = downloaded_data(run.manifest, files, scores=True, runs_scorer=False)
    assert set(cautious.scoring) == {"plain"}
    assert cautious.tasks["own"].training.rows is None
    files = {**files, **downloads(run, "answers/own", "code/own")}
    agreed = downloaded_data(run.manifest, files, scores=True, runs_scorer=True)
    assert agreed.scoring["own"].code == run.place("own") / "scorer.py"
    assert agreed.tasks["own"].training.rows is not None


def test_libraries_are_third_party_too() -> None:
    blob = blob_of(b"x", 4096)
    spec = {"rewards": [{"scorer": "math-verify", "weight": 1.0}]}
    library = DataSet("m", 1, blob, blob, json.dumps(spec, separators=(",", ":"), sort_keys=True))
    assert is_third_party(library)
    assert is_third_party(msgspec.structs.replace(library, scoring=EXACT, code=blob))
    assert not is_third_party(msgspec.structs.replace(library, scoring=EXACT))


def test_data_with_another_number_of_rows_is_refused(run: RunOnDisk) -> None:
    short = msgspec.structs.replace(run.manifest.data_sets[0], rows=8)
    manifest = msgspec.structs.replace(run.manifest, data_sets=(short,))
    with pytest.raises(IntegrityError, match="7 prompts, not the 8"):
        downloaded_data(manifest, downloads(run, "prompts/plain"), scores=False, runs_scorer=False)


@dataclass
class PoolWithout:
    """A pool on a system without some layers, and the configurations of those made."""

    missing: tuple[str, ...]
    runs_third_party_code: bool
    configs: list[PoolConfig] = field(default_factory=list)

    @property
    def protection(self) -> Protection:
        return Protection(tuple(layer for layer in ALL_LAYERS if layer not in self.missing), self.missing)

    def __call__(self, scoring: object, config: PoolConfig, launch: object = None) -> PoolWithout:
        self.configs.append(config)
        return self


@pytest.mark.parametrize("layer", [LANDLOCK, SECCOMP])
def test_a_validator_requires_what_a_learner_is_told_is_missing(
    run: RunOnDisk, monkeypatch: pytest.MonkeyPatch, layer: str
) -> None:
    pool = PoolWithout((layer, NAMESPACE), runs_third_party_code=True)
    monkeypatch.setattr(run_data, "ScorerPool", pool)
    files = downloads(run, "prompts/plain", "prompts/own", "answers/plain")
    downloaded_data(run.manifest, files, scores=True, runs_scorer=False).start_scorers()
    notices: list[str] = []
    folder_data(run.folder).start_scorers(notices.append)
    assert [config.require_layers for config in pool.configs] == [True, False]
    assert len(notices) == 1
    assert f"no {layer}, {NAMESPACE}" in notices[0]


@pytest.mark.parametrize(("missing", "third_party"), [((NAMESPACE,), True), ((LANDLOCK, SECCOMP), False)])
def test_nothing_is_said_of_layers_that_the_scorers_do_not_need(
    run: RunOnDisk, monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...], third_party: bool
) -> None:
    monkeypatch.setattr(run_data, "ScorerPool", PoolWithout(missing, third_party))
    notices: list[str] = []
    folder_data(run.folder).start_scorers(notices.append)
    assert notices == []
