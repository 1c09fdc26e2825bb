"""Lines on quantities that several commands print the same way."""

from __future__ import annotations


def fetched_line(patch_bytes: int, whole_bytes: int, brought_bytes: int) -> str:
    """What volunteers' versions cost them in patches and whole, against what they would have cost whole."""
    spent = patch_bytes + whole_bytes
    if not spent:
        return "fetched    no version"
    return (
        f"fetched    {patch_bytes / 1e6:.2f} MB of patches and {whole_bytes / 1e6:.2f} MB of whole weights"
        f" for versions of {brought_bytes / 1e6:.2f} MB: {brought_bytes / spent:.1f} times less"
    )
