"""p2prl: a peer-to-peer volunteer network for reinforcement-learning post-training of language models."""

__version__ = "0.2.0.dev0"
