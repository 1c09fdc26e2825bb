"""Temporary folders of benchmarks, with those of the tests: in memory where there is room."""

from __future__ import annotations

import tempfile

import pytest


@pytest.fixture(autouse=True)
def temporary_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.getbasetemp()))
