"""Benchmarks behind `p2prl bench`.

* `staleness`: losses under staleness, many seeds of a small policy side by side. It uses no network: delays are counted
in learner updates, so that only learning is measured.
* `comparison`: reward shaping and PPO recipes, on-policy.
* `patch`: size and speed of weight patches compared with other codecs.
* `spread`: time until every peer has a blob, compared with other schemes, on simulated home links.
* `hot_swap`: the stall of sampling while weights change.
* `publish`: what a new version costs a learner.
* `step`: time, memory and gradients of a training step compared with a plain one.
* `trust`: what cheats gain, with the defence and without it.
* `training`, `results`: parts shared by the benchmarks that train.
"""
