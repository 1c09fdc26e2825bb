"""Network and disk: the transport port and its adapters, the network process, the stores of weights and keys.

No other room names a network library. Nothing here imports torch, so a seeder or a scoreboard runs this room in some
forty megabytes.
"""
