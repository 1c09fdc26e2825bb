"""The home folder: never the root folder or one below the current folder by accident."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from p2prl.config.worker_folder import default_home
from p2prl.user_home import user_home


@pytest.mark.parametrize("broken", ["", "ada", "./ada", None])
def test_a_home_that_is_no_absolute_path_is_the_one_of_the_user_database(
    broken: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if broken is None:
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", broken)
    assert user_home() == Path(pwd.getpwuid(os.getuid()).pw_dir)
    monkeypatch.setenv("P2PRL_HOME", "~/lent")
    assert default_home() == Path(pwd.getpwuid(os.getuid()).pw_dir) / "lent"


def test_the_environment_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_home() == tmp_path
    monkeypatch.setenv("P2PRL_HOME", "~/lent")
    assert default_home() == tmp_path / "lent"
