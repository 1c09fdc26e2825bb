"""Peer connections: discovery, links, bans, and the neighbor graph the learner hands out."""
