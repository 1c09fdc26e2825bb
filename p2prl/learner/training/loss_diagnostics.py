"""Loss diagnostics for the metrics log: figures by staleness bucket, and the warning when the batch has collapsed."""

from __future__ import annotations

from p2prl.algorithms.diagnostics import StalenessDiagnostics

STALENESS_EDGES = (0, 1, 5, 17, 65, 257)
"""Least staleness of each bucket of the log, in updates; the last bucket is open."""

BUCKETS = ("0", "1-4", "5-16", "17-64", "65-256", "257+")
"""Names of the buckets in the log."""

_FIGURES = {
    "completions": "completions",
    "ess": "ess_fraction",
    "kl_k1": "kl_k1",
    "kl_k3": "kl_k3",
    "chi2": "chi2",
    "m2": "m2",
    "bounded_fraction": "bounded_fraction",
    "weight_max": "weight_max",
    "weight_variance": "weight_variance",
}
"""Attribute of `StalenessDiagnostics` by key in the log."""

_BOUNDED_LOSSES = frozenset({"topr", "gepo_t", "gex", "asympo", "asymre"})
"""Losses whose weights stay bounded however small the effective sample size is."""


def bucket_name(seen: StalenessDiagnostics) -> str:
    """Name of the bucket that these diagnostics describe."""
    return BUCKETS[STALENESS_EDGES.index(seen.staleness_from)]


def bucket_figures(bucket: str, seen: StalenessDiagnostics) -> dict[str, float]:
    """Diagnostics of one bucket under their keys in the log."""
    return {f"stale/{bucket}/{key}": getattr(seen, attribute) for key, attribute in _FIGURES.items()}


def collapse_notice(ess_fraction: float, loss: str) -> str:
    """Warning that the effective sample size has collapsed, with a remedy."""
    remedy = (
        f"{loss} bounds the damage; if the reward stalls, publish more often or lower learning_rate."
        if loss in _BOUNDED_LOSSES
        else 'Set loss.name = "topr", lower learning_rate, or reduce staleness (publish_every).'
    )
    return (
        f"only {ess_fraction:.1%} of a batch counts (effective sample size): the rollouts are far from the policy."
        f" {remedy}"
    )
