"""The paper's printed numbers, with table and row, from one data file."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def printed() -> dict[str, Any]:
    """Return all of them."""
    return json.loads(resources.files("softorder_experiments").joinpath("printed.json").read_text())
