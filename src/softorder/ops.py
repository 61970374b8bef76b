"""An old name: see CHANGELOG.md."""

import softorder
from softorder import _ops
from softorder._renamed import alias

alias("ops", "_ops")

# What the operations were imported from is a package of several modules now.
for _name in softorder.__all__:
    if getattr(softorder, _name).__module__.startswith("softorder._ops."):
        setattr(_ops, _name, getattr(softorder, _name))
