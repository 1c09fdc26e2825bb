"""`p2prl key`: keys survive on paper, and nothing overwrites one."""

from __future__ import annotations

from pathlib import Path

from p2prl import errors
from tests.unit.cli.invocation import invoke, json_of

WORDS = "legal winner thank year wave sausage worth useful legal winner thank yellow"


def test_a_key_survives_on_paper(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    assert invoke("key", "restore", "--home", first, stdin=WORDS + "\n").exit_code == 0
    written = invoke("key", "backup", "--home", first).stdout
    assert written == WORDS + "\n"
    (peer_id,) = json_of("key", "show", "--home", first)["seats"].values()
    assert peer_id in invoke("key", "backup", "--home", first).stderr, "whose words these are"
    assert invoke("key", "restore", "--home", second, stdin=written).exit_code == 0
    peers = [json_of("key", "show", "--home", home)["seats"] for home in (first, second)]
    assert peers[0] == peers[1]
    result = invoke("key", "restore", "--home", first, stdin=WORDS + "\n")
    assert isinstance(result.exception, errors.IdentityError)
    assert "already exists" in str(result.exception)


def test_only_listed_folders_can_be_backed_up(tmp_path: Path) -> None:
    for seat in ("2", "validator-1"):
        assert invoke("key", "restore", "--home", tmp_path, "--seat", seat, stdin=WORDS + "\n").exit_code == 0
    listed = json_of("key", "show", "--home", tmp_path)["seats"]
    assert set(listed) == {"seat-2", "validator-1"}
    for seat in (*listed, "2"):
        assert invoke("key", "backup", "--home", tmp_path, "--seat", seat).stdout == WORDS + "\n"
    absent = invoke("key", "backup", "--home", tmp_path).exception
    assert isinstance(absent, errors.IdentityError)
    assert "seat-2, validator-1" in absent.remedy
    assert "words" not in absent.remedy
    for bad in ("../x", "key.json", "seat-", ""):
        assert isinstance(invoke("key", "backup", "--home", tmp_path, "--seat", bad).exception, errors.ConfigError), bad


def test_a_seeders_key_is_listed(tmp_path: Path) -> None:
    assert invoke("key", "restore", "--home", tmp_path, "--seat", "seeder-1", stdin=WORDS + "\n").exit_code == 0
