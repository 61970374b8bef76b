"""An old name: see CHANGELOG.md."""

from softorder._renamed import alias

alias("plackett_luce", "_plackett_luce")
