"""Environments that a run brings: WebAssembly modules without imports, which compute the same on every machine."""
