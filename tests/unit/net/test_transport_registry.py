"""Transports by name: the built-in ones, and lazy imports of their libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest

from p2prl.errors import ConfigError
from p2prl.net.process.network_config import NetworkConfig
from p2prl.net.transports.libp2p.library import Library
from p2prl.net.transports.transport_registry import TRANSPORTS


def test_the_default_transport_is_built_in() -> None:
    default = NetworkConfig.__dataclass_fields__["transport"].default
    assert TRANSPORTS.names()[:2] == (default, "libp2p")
    assert all(callable(TRANSPORTS.get(name)) for name in TRANSPORTS.names()[:2])


def test_an_unknown_transport_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown transport 'libp3p'") as caught:
        TRANSPORTS.get("libp3p")
    assert "libp2p" in caught.value.remedy


def test_choosing_a_transport_imports_no_network_library() -> None:
    probe = (
        "import sys\n"
        "from p2prl.net.transports.transport_registry import TRANSPORTS\n"
        "TRANSPORTS.get('hivemind'), TRANSPORTS.get('libp2p')\n"
        "assert not {'hivemind', 'libp2p', 'trio', 'torch'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", probe], check=True)


def test_a_missing_extra_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "hivemind", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="not installed"):
        Library()
