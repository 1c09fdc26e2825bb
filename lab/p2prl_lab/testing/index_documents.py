"""Documents of an index, made by hand from any listings."""

from __future__ import annotations

import base64
import json


def runs_json(*records: bytes) -> bytes:
    """The document of listings."""
    return json.dumps({"runs": [{"record_base64": base64.b64encode(each).decode()} for each in records]}).encode()
