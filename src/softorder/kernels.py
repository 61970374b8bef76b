"""An old name: see CHANGELOG.md."""

from softorder._renamed import alias

alias(
    "kernels",
    "_kernels",
    {
        "balance": "doubly_stochastic",
        "choice": "dispatch",
        "contests": "pairwise",
        "dense": "dense",
        "distances": "distances",
        "exponentials": "profiles",
        "hard": "views",
        "host": "on_cpu",
        "isotonic": "isotonic",
        "native": "native",
        "operator": "operator",
        "places": "quantile_positions",
        "rank_tails": "rank_tails",
        "scan": "scan",
        "scores": "scores",
        "ties": "ties",
        "tiled": "tiled",
    },
)
