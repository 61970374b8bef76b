"""The commands of `softorder`, a file for each group."""
