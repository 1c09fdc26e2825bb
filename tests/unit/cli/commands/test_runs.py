"""`p2prl runs`: what this machine could serve and why not, the owner's lists, and the refusals of `join --any`."""

from __future__ import annotations

import base64
import time
from pathlib import Path

import pytest

from p2prl.config.run_lists import load_lists
from p2prl.errors import ConfigError
from p2prl.exit_codes import USAGE
from p2prl.index.index_client import IndexClient
from p2prl.protocol.listing import run_id
from p2prl_lab.testing.listed_runs import ListedRun, many_runs
from tests.command_doc import json_keys
from tests.unit.cli.invocation import invoke, json_of

SMALL, HUGE, BAIT = (
    ListedRun("small", "a"),
    ListedRun("huge", "b", (("parameters", 100_000_000_000),)),
    ListedRun("bait", "c"),
)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> str:
    """An index with a run for this machine, one that is too large, and one whose listing is not true."""
    now = time.time()
    signed = [SMALL.signed(now=now), HUGE.signed(now=now), BAIT.signed(now=now, goal="Cure cancer")]
    manifests = {run_id(each.run): each.manifest_raw for each in (SMALL, HUGE, BAIT)}

    def get(client: IndexClient, path: str, most: int) -> bytes:
        if path == "/api/v1/runs":
            rows = ",".join(f'{{"record_base64": "{base64.b64encode(raw).decode()}"}}' for raw in signed)
            return f'{{"runs": [{rows}]}}'.encode()
        return manifests[path.rpartition("/")[2]]

    monkeypatch.setattr(IndexClient, "_get", get)
    return "http://index.test"


def test_runs_are_shown_with_what_they_take_and_why_others_are_left_out(index: str, tmp_path: Path) -> None:
    shown = json_of("runs", "--index", index, "--home", tmp_path)
    assert set(shown) == json_keys("p2prl runs")
    assert [run["name"] for run in shown["runs"]] == ["small"]
    why = {run["name"]: run["why"] for run in shown["left_out"]}
    assert "too little memory" in why["huge"]
    assert "manifest says" in why["bait"]
    text = invoke("runs", "--index", index, "--home", tmp_path).output
    assert f"p2prl join {SMALL.link}" in text.replace("'", "")
    assert "left out: huge" in text
    assert "endorses no run" in " ".join(text.split())


def test_lists_are_kept_by_ids_and_never_by_names(index: str, tmp_path: Path) -> None:
    owner, run = str(SMALL.learner.peer_id), run_id(SMALL.run)
    for given, kept in ((owner, owner), (run, run), (str(SMALL.link), run)):
        assert json_of("runs", "block", given, "--home", tmp_path)["blocked"] == [kept]
        shown = json_of("runs", "--index", index, "--home", tmp_path)
        assert shown["runs"] == []
        assert "you have blocked" in next(each["why"] for each in shown["left_out"] if each["name"] == "small")
        assert json_of("runs", "block", given, "--remove", "--home", tmp_path)["blocked"] == []
    other = str(many_runs(1)[0].learner.peer_id)
    assert json_of("runs", "allow", other, "--home", tmp_path)["allowed"] == [other]
    assert json_of("runs", "--index", index, "--home", tmp_path)["runs"] == []
    for command in ("block", "allow"):
        refused = invoke("runs", command, "small", "--home", tmp_path).exception
        assert isinstance(refused, ConfigError)
        assert "neither an owner's id nor a run's" in str(refused)
    assert (tmp_path / "runs.json").stat().st_mode & 0o777 == 0o600


def test_a_trusted_index_is_asked_where_none_is_named(index: str, tmp_path: Path) -> None:
    refused = invoke("runs", "--home", tmp_path).exception
    assert isinstance(refused, ConfigError)
    assert "p2prl runs trust" in refused.remedy
    assert json_of("runs", "trust", f"{index}/", "--home", tmp_path)["indexes"] == [index]
    assert [run["name"] for run in json_of("runs", "--home", tmp_path)["runs"]] == ["small"]
    for wrong in ("index.test", "ftp://index.test", "http://user@index.test", "http://index.test/?q=1", "http://a:x"):
        assert isinstance(invoke("runs", "trust", wrong, "--home", tmp_path).exception, ConfigError)


def test_a_damaged_list_is_told_and_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "runs.json").write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        load_lists(tmp_path)
    assert isinstance(invoke("runs", "trust", "http://a.example", "--home", tmp_path).exception, ConfigError)
    assert (tmp_path / "runs.json").read_text() == "{"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((str(SMALL.link), "--prefer", "small"), "choose among runs"),
        (("--any",), "no index of runs is known"),
        (("--any", "--index", "a.example"), "is not the address of an index"),
        (("--any", "--index", "http://127.0.0.1:9", "--only", "somebody"), "neither an owner's id"),
    ],
)
def test_join_refuses_half_an_order(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    refused = invoke("join", *arguments, "--home", tmp_path).exception
    assert isinstance(refused, ConfigError)
    assert words in str(refused)


@pytest.mark.parametrize("arguments", [(), ("--index", "http://a.example")])
def test_join_without_a_link_names_both_ways(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    result = invoke("join", *arguments, "--home", tmp_path)
    assert result.exit_code == 2
    assert "a join link is missing" in result.output
    assert "--any" in result.output


@pytest.mark.parametrize("listen", ["8100", "host:", "host:99999", "::1:80", "host:port"])
def test_an_index_refuses_a_place_that_is_none(listen: str) -> None:
    assert isinstance(invoke("index", "serve", "--listen", listen).exception, ConfigError)


def test_an_index_that_is_no_address_is_named_as_damage(tmp_path: Path) -> None:
    (tmp_path / "runs.json").write_text('{"indexes": [{"id": "foo"}]}')
    with pytest.raises(ConfigError, match=r"runs\.json is damaged") as caught:
        load_lists(tmp_path)
    assert "delete" in caught.value.remedy


@pytest.mark.parametrize("option", [("--home", "elsewhere"), ("--json",), ("--index", "http://127.0.0.1:9")])
def test_an_option_before_a_subcommand_changes_no_other_home(tmp_path: Path, option: tuple[str, ...]) -> None:
    result = invoke("runs", *option, "trust", "https://index.example", "--home", tmp_path)
    assert result.exit_code == USAGE
    assert "options go after the subcommand" in " ".join(result.stderr.split())
    assert not (tmp_path / "runs.json").exists()
