"""Imports of the product and of the laboratory form no circle, however late or lazy they are."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.unit.house.source_tree import LABORATORY, PRODUCT_FOLDERS, ROOT, imports_of, python_files


def modules() -> dict[str, Path]:
    """Every module of the product and of the laboratory by its import name."""
    found = {}
    for path in python_files(*PRODUCT_FOLDERS, LABORATORY):
        first, *rest = path.relative_to(ROOT).with_suffix("").parts
        parts = rest if first == LABORATORY else [first, *rest] if first == "p2prl" else ["p2prl", first, *rest]
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


def graph() -> dict[str, set[str]]:
    """Modules with the modules they import. `from package import module` is an import of the module."""
    known = modules()
    edges: dict[str, set[str]] = {}
    for name, path in known.items():
        targets = set()
        for target in imports_of(path):
            owner = target.rpartition(".")[0]
            targets.add(target if target in known else owner)
        edges[name] = (targets & known.keys()) - {name}
    return edges


def circle(edges: dict[str, set[str]]) -> list[str]:
    """The modules of one circle, in import order; empty if there is none."""
    done: set[str] = set()

    def search(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for target in sorted(edges[name]):
            if found := search(target, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(edges) if (found := search(name, []))), [])


def test_no_circle() -> None:
    found = circle(graph())
    assert not found, "imports form a circle: " + " -> ".join(found)


def test_circles_are_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_every_room_is_read() -> None:
    edges = graph()
    assert "p2prl.protocol.limits" in edges["p2prl.protocol.envelope"]
    assert "p2prl.client.next_action" in edges["p2prl.client.service"]
    assert "p2prl_lab.bench.trust.attacks" in edges["p2prl_lab.bench.trust.benchmark"]
    assert "p2prl.patches.numba_kernels" in edges["p2prl.patches.kernel_choice"], "lazy imports count"


def test_only_ranks_import_the_library_of_collectives() -> None:
    users = {name for name, path in modules().items() for target in imports_of(path) if "torch.distributed" in target}
    assert users
    assert {name for name in users if not name.startswith("p2prl.ranks.")} == set()


def test_a_learner_of_one_process_imports_no_ranks() -> None:
    """They are imported inside the functions that start them."""
    eager = {name for name, path in modules().items() if "p2prl.ranks" in path.read_text() and _at_its_top(path)}
    assert {name for name in eager if not name.startswith("p2prl.ranks")} == {"p2prl.config.learner_ranks"}
    assert not _at_its_top(modules()["p2prl.config.roles"], "p2prl.config.learner_ranks")


def test_ranks_send_no_pickles() -> None:
    """Nor does torch for them: its collectives of objects and its own checkpoint files are pickles."""
    pickles = ("pickle", "object_list", "gather_object", "torch.load", "torch.save", "distributed.checkpoint")
    for name, path in modules().items():
        if name.startswith("p2prl.ranks"):
            assert not [word for word in pickles if word in path.read_text()], name


def _at_its_top(path: Path, package: str = "p2prl.ranks") -> bool:
    """Whether a module imports a package outside of functions."""
    return any(
        isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package)
        for node in ast.parse(path.read_text()).body
    )
