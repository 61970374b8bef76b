"""Benchmarks: time and peak memory of softorder, of the paper's formula and of peers."""
