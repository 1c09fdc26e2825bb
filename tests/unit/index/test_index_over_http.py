"""Indexes over real sockets: a listing, a mirror, a look at several, and servers that lie, are none or flood."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from p2prl.clock import SystemClock
from p2prl.config.run_folder import Folder
from p2prl.errors import ConfigError, UnreachableError
from p2prl.index import index_client
from p2prl.index.index_client import IndexClient
from p2prl.index.mirroring import mirror_once
from p2prl.index.run_finder import RunFinder
from p2prl.index.run_lister import RunLister, missing_volunteers
from p2prl.protocol.listing import run_id
from p2prl.protocol.manifests import RunFile, TaskShare, blob_of
from p2prl.tasks.wasm import runtime
from p2prl_lab.testing.index_documents import runs_json
from p2prl_lab.testing.listed_runs import ListedRun, many_runs
from p2prl_lab.testing.sample_ledgers import identity
from tests.unit.index.servers import Answering, Serve

RUN = ListedRun()


def test_a_listing_is_sent_found_and_mirrored(serve: Serve) -> None:
    url, state = serve()
    client = IndexClient(url)
    now = time.time()
    client.submit(RUN.signed(now=now, volunteers=3), RUN.manifest_raw)
    (found,) = client.listings(now=now)
    assert found.opened.raw == RUN.signed(now=now, volunteers=3)
    assert client.manifest(found.opened) == RUN.manifest_raw
    with pytest.raises(ConfigError, match="as new is here"):
        client.submit(RUN.signed(now=now - 1), RUN.manifest_raw)

    mirror_url, mirror = serve()
    assert mirror_once(mirror, client, now=now) == 1
    assert mirror_once(mirror, client, now=now) == 0
    listed = RunFinder((mirror_url,)).look(now=now)
    assert [run_id(opened.run) for opened, _ in listed.listings] == [run_id(RUN.run)]
    assert listed.faults == {}
    client.submit(RUN.signed(now=now + 1, state="ended"), RUN.manifest_raw)
    assert mirror_once(mirror, client, now=now) == 1
    assert mirror.rows()[0].kept.opened.listing.state == "ended"
    assert len(state.rows()) == 1


def test_the_newest_listing_of_several_indexes_holds_and_a_silent_one_is_named(serve: Serve) -> None:
    now = time.time()
    (old, _), (new, _) = serve(), serve()
    IndexClient(old).submit(RUN.signed(now=now - 5, volunteers=1), RUN.manifest_raw)
    IndexClient(new).submit(RUN.signed(now=now, volunteers=9), RUN.manifest_raw)
    finder = RunFinder((old, "http://127.0.0.1:9", new))
    listed = finder.look(now=now)
    assert [opened.listing.volunteers for opened, _ in listed.listings] == [9]
    assert list(listed.silent) == ["http://127.0.0.1:9"]
    with pytest.raises(UnreachableError, match=r"cannot be reached: Connection refused$"):
        RunFinder(("http://127.0.0.1:9",)).look(now=now)


def test_an_index_that_lies_gets_no_false_listing_through(answering: Answering) -> None:
    now = time.time()
    baited = ListedRun("bait", "switcher")
    stolen = RUN.signed(now=now, by=identity("thief"))
    switched = baited.signed(now=now, goal="Cure cancer")
    url = answering(
        {
            "/api/v1/runs": runs_json(b"junk", stolen, switched, many_runs(1)[0].signed(now=now)),
            f"/api/v1/manifests/{run_id(RUN.run)}": RUN.manifest_raw,
            f"/api/v1/manifests/{run_id(baited.run)}": baited.manifest_raw,
            f"/api/v1/manifests/{run_id(many_runs(1)[0].run)}": RUN.manifest_raw,
        }
    )
    listed = RunFinder((url,)).look(now=now)
    faults = listed.faults
    assert "not the run's learner's" in faults[run_id(RUN.run)]
    assert "manifest says" in faults[run_id(baited.run)]
    assert "not the manifest that its link names" in faults[run_id(many_runs(1)[0].run)]
    assert len(listed.listings) == len(faults) == 3


def test_a_run_whose_environments_this_program_cannot_interpret_is_left_out_before_a_worker_starts(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    files = (RunFile("game.wasm", blob_of(b"\0asm", 4096)),)
    brings = ListedRun("games", "gamer", changes=(("files", files), ("tasks", (TaskShare("game", 1.0),))))
    url, _ = serve()
    for run in (brings, RUN):
        IndexClient(url).submit(run.signed(now=now), run.manifest_raw)
    monkeypatch.setitem(sys.modules, "wasmtime", None)
    runtime.library.cache_clear()
    faults = RunFinder((url,)).look(now=now).faults
    runtime.library.cache_clear()
    assert list(faults) == [run_id(brings.run)]
    assert "wasmtime" in faults[run_id(brings.run)]
    assert "[agents]" in faults[run_id(brings.run)]


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"runs": 3}', b"\xff\xfe"])
def test_another_web_server_is_no_index(answering: Answering, body: bytes) -> None:
    with pytest.raises(UnreachableError, match="no index of runs"):
        IndexClient(answering({"/api/v1/runs": body})).listings(now=time.time())


def test_an_endless_answer_is_cut_off(answering: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_client, "MAX_ANSWER_BYTES", 1_000)
    with pytest.raises(UnreachableError, match="more than 1,000 bytes"):
        IndexClient(answering({"/api/v1/runs": bytes(70_000)})).listings(now=time.time())


def folder_of(run: ListedRun, directory: Path) -> Folder:
    return Folder(directory, run.learner, run.manifest, run.manifest_raw)


def test_a_learner_says_what_becomes_public_lists_its_run_and_marks_its_end(serve: Serve, tmp_path: Path) -> None:
    url, state = serve()
    said: list[str] = []
    told = threading.Event()

    def tell(text: str) -> None:
        said.append(text)
        if text.startswith("Listed at"):
            told.set()

    board = "https://board.example.org"
    lister = RunLister(folder_of(RUN, tmp_path), (url,), SystemClock(), board=board, tell=tell)
    assert state.rows() == ()
    lister.note(link=str(RUN.link), volunteers=2)
    lister.on_metrics({"plan/predicted_utilisation": 0.5, "plan/volunteers": 4})
    lister.begin(str(RUN.link))
    assert told.wait(20)
    assert said[0].startswith("Public from now on")
    assert f"learner's address, and its board's address, {board}." in said[0]
    listing = state.rows()[0].kept.opened.listing
    assert (listing.state, listing.volunteers, listing.missing, listing.link) == ("running", 4, 4, str(RUN.link))
    assert listing.board == board
    lister.end(finished=False)
    assert state.rows()[0].kept.opened.listing.state == "paused"


def test_without_an_index_nothing_is_said_or_sent(tmp_path: Path) -> None:
    said: list[str] = []
    lister = RunLister(folder_of(RUN, tmp_path), (), SystemClock(), tell=said.append)
    lister.begin(str(RUN.link))
    lister.end(finished=True)
    assert said == []


@pytest.mark.parametrize(
    ("metrics", "missing"),
    [
        ({}, None),
        ({"plan/predicted_utilisation": 0.5}, None),
        ({"plan/predicted_utilisation": 1.0, "plan/volunteers": 7}, 0),
        ({"plan/predicted_utilisation": 0.5, "plan/volunteers": 7}, 7),
        ({"plan/predicted_utilisation": 0.7, "plan/volunteers": 7}, 3),
        ({"plan/predicted_utilisation": 0.69, "plan/volunteers": 7}, 4),
        ({"plan/predicted_utilisation": 0.0, "plan/volunteers": 0}, None),
        ({"plan/predicted_utilisation": 1.0, "plan/volunteers": 7, "plan/standby": 2}, -2),
    ],
)
def test_what_a_run_misses_follows_from_its_forecast(metrics: dict[str, float], missing: int | None) -> None:
    assert missing_volunteers(metrics) == missing
