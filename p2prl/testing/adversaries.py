"""Samplers of dishonest volunteers by name, for tests over sockets and for the command line of a cheat.

An adversary is an honest volunteer whose sampler is replaced. To test another attack, write a cheat and add it to
`p2prl.sim.dishonest_samplers.CHEATS`, or a sampler of your own to `ADVERSARIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from p2prl.models.sampler_port import Sampler
from p2prl.sim.dishonest_samplers import DISHONEST_SAMPLERS

ADVERSARIES: Mapping[str, Callable[[Sampler], Sampler]] = DISHONEST_SAMPLERS
"""Name → sampler made from the honest one."""
