"""Named methods and sets of methods: `rivals`, `ablations`, and the single members of the ablation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from p2prl.algorithms.loss_registry import BUILTIN_LOSSES

OURS = ("gepo_t", "gex")
"""Losses of this project."""

NOT_RIVALS = (*OURS, "reinforce", "ppo", "dpo")
"""Ours, the control, and those that this benchmark cannot run."""

NAMED: Mapping[str, str] = MappingProxyType(
    {
        "default": "topr:negative_high=0.25+amsgrad",
        "full_vcpo": "tis:cap=8:advantage=mean_std+vcpo+opob",
        "full": "ablated",
        "without_expectation": "ablated:expectation=none:cap=2",
        "without_cap": "ablated:cap=1e9",
        "without_taper": "ablated:taper=none",
        "with_geometric_taper": "ablated:taper=geometric",
        "with_token_taper": "ablated:taper=token",
        "without_nll": "ablated:sharpness=0",
        "with_brake": "ablated+brake",
        "only_expectation": "ablated:taper=none:sharpness=0:cap=1e9",
        "only_expectation_and_cap": "ablated:taper=none:sharpness=0",
        "only_taper": "ablated:expectation=none:cap=2:sharpness=0",
        "only_nll": "ablated:expectation=none:cap=2:taper=none",
        "only_brake": "ablated:expectation=none:cap=2:taper=none:sharpness=0+brake",
        "nothing": "ablated:expectation=none:cap=2:taper=none:sharpness=0",
    }
)
"""Methods by a name of their own.

default: what a run does with the preset's settings. full_vcpo: VCPO as its authors run it, with their cap of 8
on the weight of a sequence. The others: GEPO-T divided by NLL (`full`) with a part left out, replaced or alone. The cap
is given where there is no expectation, because weights of 1 never reach it and a sweep would try it in vain."""

ABLATIONS = tuple(NAMED)[2:]
"""Every part of GEPO-T divided by NLL, left out and alone."""

RIVALS = (*(name for name in BUILTIN_LOSSES if name not in NOT_RIVALS), "full_vcpo")
"""Every published loss."""

SETS: Mapping[str, tuple[str, ...]] = MappingProxyType({"ablations": ABLATIONS, "rivals": RIVALS})
"""Sets by name."""


def expanded(methods: Sequence[str]) -> tuple[str, ...]:
    """The methods with every set and every name of this file written out, each once, in order."""
    members = [member for method in methods for member in SETS.get(method, (method,))]
    return tuple(dict.fromkeys(map(_written_out, members)))


def _written_out(method: str) -> str:
    """The method, a name at its beginning written out: additions may follow."""
    name, plus, additions = method.partition("+")
    return NAMED.get(name, name) + plus + additions
