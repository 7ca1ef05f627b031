"""Digests of JSON data, by which the framework adapters recognize a repeated request. Pure.

Some of them are stored with recorded calls: a digest that is computed differently makes every
interrupted chat or run look like another one.
"""

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any


def json_digest(data: Any, *, length: int, default: Callable[[Any], Any] = str) -> str:
    """Return a hexadecimal digest of JSON data; `default` converts values that are not JSON."""
    # Non-ASCII text is escaped, so that lone surrogates from a model can be encoded.
    text = json.dumps(data, sort_keys=True, default=default)
    return sha256(text.encode()).hexdigest()[:length]
