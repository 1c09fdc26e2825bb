"""Benchmarks that compare p2prl with something else; each is a command of `p2prl bench`.

* `staleness`: losses under staleness, many seeds of a small policy side by side. It uses no network: delays are counted
in learner updates, so that only learning is measured.
* `comparison`: reward shaping and PPO recipes, on-policy.
* `patch`: size and speed of weight patches compared with other codecs.
* `spread`: time until every peer has a blob, compared with other schemes, on simulated home links.
* `hot_swap`: the stall of sampling while weights change.
* `draw_cost`: the cost of drawing a token from seeds.
* `replay`, `pacing`: the cost of checking groups, and the order of replays where hard prompts are slow.
* `trust`: what cheats gain, with the defence and without it.
* `training`, `results`: parts shared by the benchmarks that train.
"""
