"""The operations: sort, argsort, rank, top-k, quantile, nearest neighbours.

Each is a few lines over a `SoftPermutation` and goes to its namesake in torch as tau goes to 0,
except for `median`, which for even n is the mean of the middle two. In all of them `how` is a
temperature tau, short for `SoftSort(tau)`, or a relaxation; `dim` is the dimension that is ordered;
`mask` is True where an item takes part, and what the others hold does not matter.
"""
