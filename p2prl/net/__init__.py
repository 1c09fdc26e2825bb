"""Where sockets live: the transport port and its adapters over hivemind and py-libp2p, and the identity's key file.

A room above `protocol` and below the roles. No other room names a network library: the roles see `ports.Transport`
alone. Nothing here imports torch, so a relay or a scoreboard runs this room in some forty megabytes.
"""
