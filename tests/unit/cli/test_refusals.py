"""Bad arguments: refused with a sentence and a remedy, before torch is imported and before anything is written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from p2prl import errors
from p2prl.protocol.identity import Identity
from tests.unit.cli.invocation import invoke

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}

REFUSED_AT_ONCE = [
    ("join", "p2prl://chain@abc"),
    ("validate", "p2prl://chain@abc"),
    ("learn", "/nowhere"),
    ("eval", "/nowhere"),
    ("board", "/nowhere"),
    ("board", "/nowhere", "--host", "256.0.0.1"),
    ("ledger", "verify", "/nowhere"),
]


@pytest.mark.parametrize("arguments", REFUSED_AT_ONCE)
def test_wrong_input_is_refused_before_torch_is_imported(arguments: tuple[str, ...]) -> None:
    probe = (
        f"import sys; sys.argv = ['p2prl', *{arguments!r}]\n"
        "from p2prl.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code in (3, 4), end.code\n"
        "heavy = {'torch', 'transformers', 'hivemind', 'fastapi'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, env=ENVIRONMENT, capture_output=True)


SOME_LINK = f"p2prl://chain@{'a' * 52}?b=/ip4/127.0.0.1/tcp/1/p2p/{Identity(bytes(16)).peer_id}"

REFUSED: list[tuple[tuple[str, ...], type[errors.P2PRLError], str]] = [
    (("join", "http://x"), errors.ConfigError, "starts with p2prl://"),
    (("join", "p2prl://chain@abc"), errors.ConfigError, "cut off"),
    (("validate", "p2prl://chain@" + "a" * 52), errors.ConfigError, "names no peer"),
    (("learn", "/nowhere"), errors.ConfigError, "not a run folder"),
    (("learn", "/nowhere", "--upload-mbit", "2e6"), errors.ConfigError, "--upload-mbit 2e+06"),
    (("join", SOME_LINK, "--base", "./none"), errors.ConfigError, "there is no directory ./none"),
    (("validate", SOME_LINK, "--base", "/nowhere"), errors.ConfigError, "there is no directory /nowhere"),
    (("validate", SOME_LINK, "--monthly-gb", "inf"), errors.ConfigError, "--monthly-gb inf"),
    (("eval", "/nowhere"), errors.ConfigError, "not a run folder"),
    (("status", "/nowhere"), errors.ConfigError, "not a run folder"),
    (("board", "/nowhere", "--json"), errors.ConfigError, "not a run folder"),
    (("ledger", "verify", "/nowhere"), errors.MachineError, "cannot be read"),
    (("init", "a b"), errors.ConfigError, "is not a valid run name"),
    (("init", "x", "--preset", "y"), errors.ConfigError, "no preset"),
    (("init", "x", "--temperature", "0"), errors.ConfigError, "temperature"),
    (("init", "x", "--dtype", "int4"), errors.ConfigError, "dtype"),
    (("sim", "--partition", "5"), errors.ConfigError, "FROM:TO"),
]


@pytest.mark.parametrize(("arguments", "kind", "words"), REFUSED)
def test_wrong_input_is_refused_with_a_remedy(
    arguments: tuple[str, ...],
    kind: type[errors.P2PRLError],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("P2PRL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert isinstance(result.exception, kind), result.exception
    assert words in str(result.exception)
    assert result.exception.remedy
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []
