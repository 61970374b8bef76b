"""An old name: see CHANGELOG.md."""

from softorder._renamed import alias

alias("permutation", "_permutation")
