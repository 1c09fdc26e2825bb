"""Transports: adapters of network libraries to `p2prl.net.ports`, and the parts they share."""
