"""A join link as users give it: the link, a run folder that has it, or a refusal that says how to get one."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.config.named_link import named_link
from p2prl.errors import ConfigError
from p2prl.protocol.identity import Identity
from p2prl.protocol.join_link import parse_link

LINK = f"p2prl://chain@{'a' * 52}?b=/ip4/127.0.0.1/tcp/1/p2p/{Identity(bytes(16)).peer_id}"


def test_a_link_and_a_run_folder_with_one(tmp_path: Path) -> None:
    (tmp_path / "run.manifest").touch()
    (tmp_path / "link").write_text(f"{LINK}\n")
    expected = parse_link(LINK)
    assert named_link(f" {LINK}\n") == named_link(str(tmp_path)) == named_link(str(tmp_path / "link")) == expected


def test_a_run_without_a_link_says_what_makes_one(tmp_path: Path) -> None:
    run = tmp_path / "my run"
    run.mkdir()
    with pytest.raises(ConfigError, match="a folder without a run, and a join link is wanted"):
        named_link(str(run))
    (run / "run.manifest").touch()
    with pytest.raises(ConfigError, match="no join link yet: its learner has not been up") as caught:
        named_link(str(run))
    assert f"p2prl learn '{run}'" in caught.value.remedy


@pytest.mark.parametrize("text", ["runs/gone", "http://x", "", "~no-such-user/run", "x" * 400, "a\0b"])
def test_other_texts_are_refused_as_links(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="join link"):
        named_link(text)


def test_a_folder_that_is_not_here_is_no_broken_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="there is no folder runs/my-run here"):
        named_link("runs/my-run")
    with pytest.raises(ConfigError, match="a join link starts with"):
        named_link("my-run@7Q2K?b=/ip4/127.0.0.1")


def test_a_link_copied_out_of_quotation_marks_or_the_source_of_a_page() -> None:
    twice = f"{LINK}&b=/ip4/127.0.0.2/tcp/1/p2p/{Identity(bytes(16)).peer_id}"
    assert named_link(f"'{twice}'") == named_link(twice.replace("&", "&amp;")) == parse_link(twice)


@pytest.mark.parametrize("port", ["99999", "http", "-1", "0", "٣", "²"])
def test_a_port_that_is_none_is_the_links_fault(port: str) -> None:
    with pytest.raises(ConfigError, match="the link's peer address") as caught:
        parse_link(LINK.replace("/tcp/1/", f"/tcp/{port}/"))
    assert "Copy the whole link again" in caught.value.remedy
