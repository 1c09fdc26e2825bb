"""Upload of an export: every file arrives at a hub over HTTP, and each refusal says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from safetensors.torch import save_file
from torch import ones

from p2prl.cli.commands.export_push import HubRepository
from p2prl.errors import ConfigError, MachineError
from tests.unit.cli.commands.fake_hub import TOKEN, FakeHub, fake_hub

_OLD_CALL = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
"""huggingface_hub sends files through an argument that its HTTP library has renamed."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    """A hub on this machine, and no login of the user's own."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path_factory.mktemp("hf") / "token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    with fake_hub() as serving:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", serving.url)  # as HF_ENDPOINT would
        yield serving


@pytest.fixture
def export(tmp_path: Path) -> Path:
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# card\n")
    (folder / "config.json").write_text("{}")
    save_file({"w": ones(3)}, folder / "model.safetensors")
    return folder


def repository(hub: FakeHub, name: str = "owner/model", *, token: str | bool = TOKEN) -> HubRepository:
    return HubRepository(name, private=True, hub=HfApi(endpoint=hub.url, token=token), quiet=True)


@_OLD_CALL
def test_every_file_arrives_in_one_commit(hub: FakeHub, export: Path) -> None:
    target = repository(hub)
    target.check_login()
    assert hub.created == []  # a check creates nothing
    assert target.upload(export, message="unit, step 3") == f"{hub.url}/owner/model"
    assert hub.files == {path.name: path.read_bytes() for path in export.iterdir()}
    assert hub.messages == ["unit, step 3"]
    (created,) = hub.created
    assert created["name"] == "model"
    assert created.get("private") is True or created.get("visibility") == "private"


def test_refusals_say_what_to_do(hub: FakeHub, export: Path) -> None:
    with pytest.raises(ConfigError, match="no Hugging Face login") as caught:
        HubRepository("owner/model", private=False, hub=HfApi(endpoint=hub.url)).check_login()
    assert "hf auth login" in caught.value.remedy
    with pytest.raises(ConfigError, match="refuses this login") as caught:
        repository(hub, token="hf_wrong").check_login()
    assert "Nothing was exported" in caught.value.remedy
    with pytest.raises(ConfigError, match="refuses this login for other/model") as caught:
        repository(hub, "other/model").upload(export, message="m")
    assert f"hf upload other/model {export}" in caught.value.remedy
    assert hub.files == {}


def test_hub_that_does_not_answer(hub: FakeHub, export: Path) -> None:
    away = HubRepository("owner/model", private=False, hub=HfApi(endpoint="http://127.0.0.1:9", token=TOKEN))
    with pytest.raises(MachineError, match="failed") as caught:
        away.check_login()
    assert "Check the connection" in caught.value.remedy
    with pytest.raises(MachineError) as caught:
        away.upload(export, message="m")
    assert "The export is complete" in caught.value.remedy


@_OLD_CALL
def test_upload_that_breaks_off(hub: FakeHub, export: Path) -> None:
    hub.refuses_large = True
    with pytest.raises(MachineError, match=r"uploading 'model.safetensors'") as caught:
        repository(hub).upload(export, message="m")
    assert f"hf upload owner/model {export}" in caught.value.remedy
    assert hub.messages == []


def test_offline_mode(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(MachineError, match="failed"):
        repository(hub).check_login()


@pytest.mark.parametrize("name", ["model", "a/b/c", "../up", "a/b c", "a/--b", ""])
def test_names_that_are_no_repositories(name: str) -> None:
    with pytest.raises(ConfigError, match="--push"):
        HubRepository(name, private=False)
