"""How the tests are shared out when several workers run them (`pytest -n 2 --dist loadgroup`)."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Swarms of processes run one after another, beside everything else; other tests stay together by file."""
    for item in items:
        alone = item.get_closest_marker("loopback") is not None
        item.add_marker(pytest.mark.xdist_group("loopback" if alone else item.nodeid.partition("::")[0]))
