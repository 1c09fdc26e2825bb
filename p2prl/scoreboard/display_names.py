"""Pronounceable names for public keys, so that a leaderboard never shows text typed by a stranger.

A name is two words and a number from fixed lists. It is for reading aloud, not for identity: two keys may share one, so
every table shows the end of the peer id beside it.
"""

from __future__ import annotations

from p2prl.protocol.digests import digest

_ADJECTIVES_TEXT = """
Agile Amber Ample Autumn Azure Balmy Blithe Bold Brave Breezy Bright Brisk Calm Candid Cheery Clever Coral Cosmic
Cozy Crisp Curious Dapper Daring Dawn Deft Eager Early Earnest Fabled Fair Fleet Fond Frosty Gallant Gentle Gilded
Glad Golden Hardy Hazel Honest Humble Icy Jolly Keen Kind Lively Lucid Lunar Merry Mild Misty Nimble Noble Patient
Placid Quick Quiet Rustic Sandy Serene Silver Spry Sunny
"""
ADJECTIVES = tuple(_ADJECTIVES_TEXT.split())
"""64 words; their order is part of every name and never changes."""

_ANIMALS_TEXT = """
Alpaca Antelope Badger Beaver Bison Bittern Bobcat Bunting Caribou Cheetah Condor Coyote Crane Curlew Dingo Dolphin
Dormouse Dunlin Egret Falcon Ferret Finch Gazelle Gecko Gibbon Hare Hedgehog Heron Ibex Ibis Iguana Jackdaw Jaguar
Kestrel Kiwi Koala Lemur Lynx Magpie Marmot Marten Meerkat Moose Newt Ocelot Octopus Okapi Oriole Osprey Otter Panda
Pelican Penguin Petrel Plover Puffin Quail Raven Robin Salmon Seal Stork Tapir Wombat
"""
ANIMALS = tuple(_ANIMALS_TEXT.split())
"""64 words; their order is part of every name and never changes."""

assert len(set(ADJECTIVES)) == len(set(ANIMALS)) == 64, "a power of two, so that every word is equally likely"


def display_name(public_key: bytes) -> str:
    """Name of a public key, such as "Brisk Otter 41": one of 64 × 64 × 90, the same on every machine."""
    draw = digest("p2prl/handle/v1", public_key)
    number = 10 + int.from_bytes(draw[2:10], "little") % 90
    return f"{ADJECTIVES[draw[0] % 64]} {ANIMALS[draw[1] % 64]} {number}"
