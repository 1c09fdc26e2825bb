"""Network and disk: the transport port and its adapters, the network process, the stores of weights and keys.

No other package names a network library. Nothing here imports torch, so a seeder or a scoreboard needs about forty
megabytes for it.
"""
