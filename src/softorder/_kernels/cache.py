"""The one cache: values that are computed once, and again if the first had no gradient."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from softorder._array import Wiring


class Cache:
    """Values by name. What an inner traced program computes is unknown to the one outside."""

    def __init__(self, wiring: Wiring) -> None:
        """Hold nothing yet."""
        self._wiring = wiring
        self._made_in = self._trace = wiring.trace()
        self._constants: dict[str, Any] = {}
        self._values: dict[str, tuple[Any, bool]] = {}

    def renewed(self) -> Cache:
        """Return a cache that has the constants alone."""
        cache = copy.copy(self)
        cache._trace, cache._values = self._wiring.trace(), {}
        return cache

    def preset(self, constants: dict[str, Any], **values: Any) -> None:
        """Hold what was computed elsewhere: constants, and values with their gradients."""
        self._constants.update(constants)
        self._values.update({name: (value, True) for name, value in values.items()})

    def constant(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what `make` gives, which has no gradient."""
        if name not in self._constants:
            value = make()
            if self._wiring.trace() != self._made_in:
                return value
            self._constants[name] = value
        return self._constants[name]

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what `make` gives, with its gradient."""
        recording = self._wiring.is_recording()
        value, has_gradient = self._values.get(name, (None, False))
        if value is not None and (has_gradient or not recording):
            return value
        value = make()
        if self._wiring.trace() == self._trace:
            self._values[name] = value, recording
        return value
