"""The numbers that the paper prints, by table and row; they are in one data file."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def paper_numbers() -> dict[str, Any]:
    """Return all of them."""
    return json.loads(
        resources.files("softorder_experiments").joinpath("paper_numbers.json").read_text()
    )
