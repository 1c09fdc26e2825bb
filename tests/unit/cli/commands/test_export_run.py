"""`p2prl export`: the directory loads, holds the published weights bit for bit, and replaces nothing by accident."""

from __future__ import annotations

import errno
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from p2prl import errors
from p2prl.cli.commands.export_folder import check_space, new_directory
from p2prl.models.base_model.pretrained import load_pretrained
from p2prl.models.export.model_directory import OpenedExport, open_export
from p2prl.models.weights.layout import flatten, layout_of
from p2prl.scoreboard.ledger_dump import verify_dump
from tests.command_doc import json_keys
from tests.unit.cli.commands.trained_run import CHAT_TEMPLATE, UPDATES, TrainedRun
from tests.unit.cli.invocation import invoke, json_of


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainedRun]:
    run = TrainedRun(tmp_path_factory.mktemp("trained") / "run")
    yield run
    run.close()


def exported(run: TrainedRun, out: Path, *options: object) -> dict[str, Any]:
    return json_of("export", run.directory, "--out", out, *options)


def weight_bytes(directory: Path, dtype: str) -> bytes:
    """The weights of a model directory in the run's layout."""
    model = load_pretrained(str(directory), device=torch.device("cpu"), dtype=dtype).model
    return bytes(flatten(model, layout_of(model, dtype)))


def test_exported_model_gives_the_logits_of_the_checkpoint(trained: TrainedRun, tmp_path: Path) -> None:
    with trained.small_run.journal.transaction():  # while the learner writes its journal
        document = exported(trained, tmp_path / "out")
    assert set(document) == json_keys("p2prl export")
    assert (document["step"], document["version"], document["pushed"]) == (UPDATES, UPDATES, None)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", local_files_only=True)
    assert model.dtype == torch.bfloat16
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    original = load_pretrained(str(trained.checkpoint), device=torch.device("cpu"), dtype="bfloat16")
    prompts = tokenizer(["12+34", "56+78"], return_tensors="pt")["input_ids"]
    assert prompts.tolist() == original.tokenizer(["12+34", "56+78"])["input_ids"]
    with torch.no_grad():
        assert torch.equal(model(prompts).logits, original.model(prompts).logits)
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert not (tmp_path / "out.new").exists()


def test_exported_weights_are_the_published_version_bit_for_bit(trained: TrainedRun, tmp_path: Path) -> None:
    exported(trained, tmp_path / "out")
    published = trained.weights(UPDATES)
    assert published != trained.weights(0)  # the run has learned something
    assert weight_bytes(tmp_path / "out", "bfloat16") == published


def test_checkpoint_is_rounded_to_the_published_version_when_its_weights_are_gone(
    trained: TrainedRun, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.rmtree(trained.copy_to(copy).parent)
    document = json_of("export", copy, "--out", tmp_path / "out")
    assert document["version"] == UPDATES
    assert weight_bytes(tmp_path / "out", "bfloat16") == trained.weights(UPDATES)


def test_dead_band_is_exported_as_published(tmp_path: Path) -> None:
    run = TrainedRun(tmp_path / "run", dead_band_ulp=64)
    published, weights = run.weights(UPDATES), run.copy_to(tmp_path / "without")
    run.copy_to(tmp_path / "earlier", whole_files=True)
    shutil.rmtree(weights.parent)
    documents = [
        json_of("export", tmp_path / name, "--out", tmp_path / f"{name}-out") for name in ("run", "earlier", "without")
    ]
    rounded = weight_bytes(run.checkpoint, "bfloat16")
    run.close()
    assert published != rounded  # the dead band held something back
    assert [document["version"] for document in documents] == [UPDATES, UPDATES, None]
    for name, expected in (("run", published), ("earlier", published), ("without", rounded)):
        assert weight_bytes(tmp_path / f"{name}-out", "bfloat16") == expected, name
    assert "not those of a published version" in (tmp_path / "without-out" / "README.md").read_text()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_other_types_come_from_the_checkpoint(trained: TrainedRun, tmp_path: Path, dtype: str) -> None:
    document = exported(trained, tmp_path / "out", "--dtype", dtype)
    assert (document["version"], document["dtype"]) == (None, dtype)
    held = load_file(tmp_path / "out" / "model.safetensors")
    original = load_file(trained.checkpoint / "model.safetensors")
    assert set(held) == set(original)
    for name, tensor in original.items():  # numpy rounds to nearest even too, by its own code
        assert np.array_equal(held[name].numpy(), tensor.numpy().astype(dtype)), name


def test_ledger_and_card_of_the_export_agree(trained: TrainedRun, tmp_path: Path) -> None:
    document = exported(trained, tmp_path / "out")
    recount = verify_dump(tmp_path / "out" / "run.ledger", run=trained.small_run.run)
    card = (tmp_path / "out" / "README.md").read_text()
    marker = json.loads((tmp_path / "out" / "p2prl_export.json").read_text())
    assert document["ledger_verified"] is True
    assert document["contributors"] == len(recount.people) == 2
    assert (marker["ledger_root"], marker["ledger_entries"]) == (recount.root, recount.height)
    for fact in (recount.root, recount.run_id, *(f"| {p.verified_tokens:,} |" for p in recount.people)):
        assert fact in card
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert not {name for name in names if "optimizer" in name or "trainer" in name or "key" in name}
    assert str(tmp_path) not in card + (tmp_path / "out" / "config.json").read_text()


def test_broken_ledger_lists_nobody(trained: TrainedRun, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(trained.directory, copy)
    with sqlite3.connect(copy / "journal.db") as db:
        (raw,) = db.execute("SELECT raw FROM ledger WHERE height = 1").fetchone()
        db.execute("UPDATE ledger SET raw = ? WHERE height = 1", (raw[:-1] + bytes([raw[-1] ^ 1]),))
    db.close()
    assert json_of("export", copy, "--out", tmp_path / "out")["ledger_verified"] is False
    assert not (tmp_path / "out" / "run.ledger").exists()
    card = (tmp_path / "out" / "README.md").read_text()
    assert "entry 1 of the ledger is broken" in card
    assert "ledger verify" not in card


@pytest.mark.parametrize("whole_files", [False, True])
def test_damaged_published_weights_are_refused(trained: TrainedRun, tmp_path: Path, whole_files: bool) -> None:
    copy = tmp_path / "run"
    file = trained.copy_to(copy, whole_files=whole_files)
    data = bytearray(file.read_bytes())
    data[1000] ^= 1
    file.write_bytes(data)
    result = invoke("export", copy, "--out", tmp_path / "out")
    assert isinstance(result.exception, errors.IntegrityError)
    assert result.exception.remedy
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_only_an_earlier_export_is_replaced_and_only_when_forced(trained: TrainedRun, tmp_path: Path) -> None:
    mine, out, link = tmp_path / "mine", tmp_path / "out", tmp_path / "link"
    mine.mkdir()
    (mine / "thesis.txt").write_text("x")
    link.symlink_to(mine)
    for target in (mine, link, mine / "thesis.txt"):
        for force in ([], ["--force"]):
            result = invoke("export", trained.directory, "--out", target, *force)
            assert isinstance(result.exception, errors.ConfigError)
            assert "is not an export" in str(result.exception)
    out.mkdir()  # an empty directory is no loss
    exported(trained, out)
    (out / "note.txt").write_text("x")
    result = invoke("export", trained.directory, "--out", out)
    assert isinstance(result.exception, errors.ConfigError)
    assert "--force" in result.exception.remedy
    assert (out / "note.txt").exists()
    (out / ".git").mkdir()  # the export is someone's repository by now
    result = invoke("export", trained.directory, "--out", out, "--force")
    assert "is not an export" in str(result.exception)
    (out / ".git").rmdir()
    exported(trained, out, "--force")
    assert not (out / "note.txt").exists()
    for beside in ("out.new", "out.old"):
        (tmp_path / beside).mkdir()
        (tmp_path / beside / "mine.txt").write_text("x")
        result = invoke("export", trained.directory, "--out", out, "--force")
        assert "is in the way" in str(result.exception)
        (tmp_path / beside / "mine.txt").unlink()
        (tmp_path / beside / "p2prl_export.json").write_text("{}")  # left behind by a killed export
    exported(trained, out, "--force")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "mine", "out"]


def test_default_directory_is_in_the_run_folder(trained: TrainedRun, tmp_path: Path) -> None:
    shutil.copytree(trained.directory, tmp_path / "run")
    document = json_of("export", tmp_path / "run")
    assert document["directory"] == str(tmp_path / "run" / "export" / f"step-{UPDATES}")


def test_choice_of_the_checkpoint(trained: TrainedRun, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(trained.directory, copy)
    older = copy / "checkpoints" / "step-00000002"
    shutil.copytree(trained.checkpoint, older)
    (copy / "checkpoints" / "step-00000099.new").mkdir()  # a checkpoint being written
    (copy / "checkpoints" / "step-copy").mkdir()
    assert json_of("export", copy, "--out", tmp_path / "newest")["step"] == UPDATES
    assert json_of("export", copy, "--out", tmp_path / "older", "--step", 2)["step"] == 2
    for name, versions in (("newest", UPDATES + 1), ("older", 3)):
        assert f"- Policy versions: {versions}, published" in (tmp_path / name / "README.md").read_text()
    for step in ("99", "oldest", "-1", "²"):
        result = invoke("export", copy, "--out", tmp_path / "other", f"--step={step}")
        assert isinstance(result.exception, errors.ConfigError)
        assert "2, 3" in result.exception.remedy
    (older / "tokenizer.json").unlink()  # being deleted by the learner
    result = invoke("export", copy, "--out", tmp_path / "other", "--step", 2)
    assert isinstance(result.exception, errors.MachineError)
    shutil.rmtree(copy / "checkpoints")
    result = invoke("export", copy)
    assert "has no checkpoint yet" in str(result.exception)


def test_checkpoint_deleted_while_it_is_opened_gives_the_newest_one_then(
    trained: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(trained.directory, copy)
    checkpoints = copy / "checkpoints"

    def open_late(checkpoint: Path, **options: Any) -> OpenedExport:
        if checkpoint.name == f"step-{UPDATES:08d}":
            checkpoint.rename(checkpoints / "step-00000009")  # as if the learner had written one and deleted the other
        return open_export(checkpoint, **options)

    monkeypatch.setattr("p2prl.models.export.model_directory.open_export", open_late)
    document = json_of("export", copy)
    assert (document["step"], document["version"]) == (9, None)  # no version was published at step 9
    assert document["directory"] == str(copy / "export" / "step-9")


@pytest.mark.parametrize(
    "options",
    [
        ("--dtype", "int8"),
        ("--private",),
        ("--max-shard-gb", "inf"),
        ("--push", "no-owner"),
        ("--push", "a/b/c"),
        ("--push", "../up"),
    ],
)
def test_wrong_options_are_refused(trained: TrainedRun, tmp_path: Path, options: tuple[str, ...]) -> None:
    result = invoke("export", trained.directory, "--out", tmp_path / "out", *options)
    assert isinstance(result.exception, errors.ConfigError)
    assert result.exception.remedy
    assert list(tmp_path.iterdir()) == []


def test_disk_that_fills_up_leaves_nothing_behind(
    trained: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("p2prl.models.export.sharded_weights.os.fsync", full)
    result = invoke("export", trained.directory, "--out", tmp_path / "out")
    assert isinstance(result.exception, errors.MachineError)
    assert "Free some space" in result.exception.remedy
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_run_folder_is_exported_to_another_disk(
    trained: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published, temporary_file = trained.weights(UPDATES), tempfile.TemporaryFile

    def refused_in_the_run(dir: Path) -> Any:  # noqa: A002 - as it is called
        if dir.is_relative_to(trained.directory):
            raise OSError(errno.EROFS, "Read-only file system", str(dir))
        return temporary_file(dir=dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", refused_in_the_run)
    assert exported(trained, tmp_path / "out")["version"] == UPDATES
    assert weight_bytes(tmp_path / "out", "bfloat16") == published
    result = invoke("export", trained.directory)
    assert isinstance(result.exception, errors.MachineError)
    assert str(result.exception) == f"cannot write {trained.directory}: Read-only file system"


def test_interruption_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupted() -> None:
        with new_directory(tmp_path / "out") as new:
            (new / "model.safetensors").write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_disk_without_room_is_refused_before_writing(
    trained: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=64_000_000 + 2 * 59_040)
    monkeypatch.setattr("p2prl.cli.commands.export_folder.shutil.disk_usage", lambda path: usage)
    check_space(tmp_path / "deep" / "out", 2 * 59_040)  # the weights alone fit, and the model files do not
    result = invoke("export", trained.directory, "--out", tmp_path / "deep" / "out")
    assert isinstance(result.exception, errors.MachineError)
    assert "--out" in result.exception.remedy
    assert list(tmp_path.iterdir()) == []
