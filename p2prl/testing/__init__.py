"""Testing tools for p2prl and its extensions: in-memory transport, delayed delivery, adversaries, patch swarm."""
