"""Automatic choice of the loss: near, far and between, hysteresis, and reproducibility in a replay."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.algorithms.loss_registry import BUILTIN_LOSSES
from p2prl.algorithms.loss_selection import CHOICES, SelectionConfig, SelectionState, observe
from p2prl.errors import ConfigError

CONFIG, START = SelectionConfig(), SelectionState()
NEAR, BETWEEN, FAR = (0.95, 0.002), (0.55, 0.02), (0.05, 0.2)
Figures = Iterable[tuple[float, float]]


def follow(
    figures: Figures, state: SelectionState = START, config: SelectionConfig = CONFIG
) -> tuple[SelectionState, list[tuple[int, str]]]:
    """The state after these batches, and the changes of loss with their reasons."""
    changes = []
    for number, (ess, kl) in enumerate(figures):
        state, reason = observe(state, ess_fraction=ess, kl_per_token=kl, config=config)
        if reason:
            changes.append((number, reason))
    return state, changes


def test_starts_with_the_safest_loss() -> None:
    assert set(CHOICES) <= set(BUILTIN_LOSSES)
    assert SelectionState().loss == "gepo_t"


@pytest.mark.parametrize(("figures", "loss"), [(NEAR, "grpo"), (BETWEEN, "gex"), (FAR, "gepo_t")])
def test_measurements_decide(figures: tuple[float, float], loss: str) -> None:
    state, changes = follow([figures] * 100)
    assert state.loss == loss
    assert len(changes) == (0 if loss == "gepo_t" else 1)
    for _, reason in changes:
        assert f"loss {loss} instead of gepo_t" in reason
        assert f"ESS {figures[0]:.0%}" in reason
        assert f"KL {figures[1]:.3f}" in reason


@pytest.mark.parametrize("figures", [(0.95, 0.2), (0.05, 0.002)])
def test_either_figure_alone_means_far(figures: tuple[float, float]) -> None:
    assert follow([figures] * 100)[0].loss == "gepo_t"


def test_choice_follows_staleness_back() -> None:
    state, changes = follow([*[NEAR] * 60, *[FAR] * 60, *[NEAR] * 120])
    chosen = [reason.split()[1] for _, reason in changes]
    assert chosen[0] == "grpo", "young"
    assert "gepo_t" in chosen[1:-1], "old"
    assert chosen[-1] == state.loss == "grpo", "young again"


@pytest.mark.parametrize("start", CHOICES)
@pytest.mark.parametrize("border", [(0.8, 0.001), (0.9, 0.01), (0.3, 0.02), (0.6, 0.05)])
def test_oscillating_figures_change_the_loss_once(start: str, border: tuple[float, float]) -> None:
    ess, kl = border
    wavering = [(ess * (1.08 if i % 60 < 30 else 0.92), kl * (0.92 if i % 60 < 30 else 1.08)) for i in range(600)]
    clean = [(min(1.0, each), bound) for each, bound in wavering]
    assert len(follow(clean, SelectionState(loss=start))[1]) <= 1


figures_lists = st.lists(
    st.tuples(st.floats(min_value=1e-3, max_value=1.0), st.floats(min_value=0.0, max_value=5.0)), max_size=80
)


@given(figures_lists, st.integers(min_value=0, max_value=80))
def test_changes_are_spaced_and_replayable(figures: list[tuple[float, float]], cut: int) -> None:
    straight, changes = follow(figures)
    whens = [when for when, _ in changes]
    assert all(later - earlier >= CONFIG.dwell_updates for earlier, later in itertools.pairwise(whens))
    kept = json.loads(json.dumps(asdict(follow(figures[:cut])[0])))
    assert follow(figures[cut:], SelectionState(**kept))[0] == straight


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("near_ess", 1.5),
        ("far_ess", 0.9),
        ("near_kl", 0.0),
        ("near_kl", 1.0),
        ("far_kl", -1.0),
        ("margin", float("nan")),
        ("smoothing", 0.0),
        ("dwell_updates", -1),
    ],
)
def test_impossible_borders_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field) as caught:
        SelectionConfig(**{field: value})  # type: ignore[arg-type]
    assert caught.value.remedy
