"""Imports that wait for the first call of a function: of modules that are not loaded, inside the block only."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from p2prl.models.engines.transformers.grouped_attention import deferred_import


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of an installed module that is not loaded. Its function subtracts."""
    (tmp_path / "heavy_package").mkdir()
    (tmp_path / "heavy_package" / "__init__.py").write_text("")
    (tmp_path / "heavy_package" / "math.py").write_text("def less(a, *, b): return a - b\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("heavy_package", "heavy_package.math"):
        monkeypatch.setitem(sys.modules, name, sys)  # so that it is as before afterwards
        del sys.modules[name]
    return "heavy_package.math"


def test_a_function_loads_its_module_when_it_is_called(module: str) -> None:
    with deferred_import(module):
        namespace: dict[str, object] = {}
        exec("from heavy_package.math import less", namespace)
        assert "heavy_package" not in sys.modules
    assert module not in sys.modules
    less = namespace["less"]
    assert callable(less)
    assert less(5, b=3) == 2
    assert module in sys.modules


def test_after_the_block_the_module_is_the_real_one(module: str) -> None:
    with pytest.raises(ZeroDivisionError), deferred_import(module):
        _ = 1 // 0
    assert importlib.import_module(module).less.__module__ == module


def test_a_loaded_module_stays(module: str) -> None:
    with deferred_import("json", module):
        assert importlib.import_module("json") is json
    assert sys.modules["json"] is json
