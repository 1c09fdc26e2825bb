"""Peer connections: discovery, links, bans, and the neighbor graph that the learner introduces peers along."""
