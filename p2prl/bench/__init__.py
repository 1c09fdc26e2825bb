"""Benchmarks behind `p2prl bench`.

* `staleness`: losses under staleness, many seeds of a small policy side by side. No network takes part: delays are
  counted in learner updates, so that only the learning is measured.
* `comparison`: reward shaping and PPO recipes, on-policy.
* `patch`: size and speed of weight patches beside other codecs.
* `spread`: time until a blob has reached every peer, beside other schemes, on simulated home links.
* `hot_swap`: the stall of sampling while weights change.
* `training`, `results`: parts shared by the benchmarks that train.
"""
