"""A brute-force oracle for first derivatives at tied scores.

The rule: the first derivative at a tie is the mean over all orders in which the tied scores could
have been broken. The oracle moves no score. For each combination of orders of the tied groups it
gathers x = s[order], writes the formula of the relaxation in torch, takes autograd's gradient, and
averages. One vector of scores at a time, float64, n <= 9. Nothing of the library is imported.

    value, ds, dtau, dextra = gradients("softsort", "apply", s, 0.7, p=2, extra=v, cotangent=g)

All orders are computed in one batch: every tensor inside has a leading dimension "order", and each
order has its own copy of the scores, so that its gradient is its own.

What is averaged, and what is not:

- SoftSort: row i is softmax_j(-d(x_i, s_j) / tau). The gradient of x_i goes to the item that this
  order puts at position i. A pair with x_i == s_j has distance 0. Its derivative is, for p = 1,
  sign * (dx_i - ds_j), with sign +1 if position i comes before item j in this order, -1 if after, 0
  for the same item; for p > 1 it is 0; for p < 1 and for callables it is 0 by convention.
- FastSoftSort and the exact sort: the gradient of x_i goes to the item at position i.
- NeuralSort: the plain formula with sign(0) = 0. No order is needed.
- SoftRank, ApproximateRank, FastSoftRank, OptimalTransportSort: smooth at ties; plain derivative.

The products, with the shape of their value:
    apply (n,) or (n, f): P @ v, descending. extra: v, of shape (n,) or (n, f).
    transposed (n,) or (n, f): P.T @ u. extra: u, of shape (n,) or (n, f), by position.
    rank (n,): sum_i i P_ij / sum_i P_ij, the smallest score first; i counts from 1. SoftRank,
        ApproximateRank and FastSoftRank give their own ranks.
    rank_descending (n,): the same with the largest score first.
    argsort (n,): P @ (0, ..., n - 1), ascending.
    sort (n,): P @ s, ascending. FastSoftSort gives its own sort.
    sorted (n,): the exact sort, descending.
    topk_mask (n,): column sums of the first k rows, descending. extra: k.
    topk (k,): the first k entries of P @ s, descending. extra: k.
    quantile () or (len(q),): linear interpolation in P @ s. extra: q, one or several.
    log_prob (): sum_i log P[i, permutation_i], descending. extra: the permutation; entries
        past the number of valid items are ignored.
    entropy (n,): of each row, descending.
    matrix, log_matrix (n, n): P and log P, descending.
    knn (n,): s is a pair: query of shape (d,) and neighbors of shape (n, d). The scores are
        -|query - neighbor|^2; the value is topk_mask / k. extra: k.

`test_tie_oracle.py` checks it.
"""

import itertools
import math

import numpy as np
import torch

from tie_oracle_products import MATRIX_PRODUCTS, double, sorted_scores
from tie_oracle_relaxations import FAST_SORTS, INF, MATRICES, RANKS, WITH_SORT, fast_sort, own_ranks
from tolerances import VALUES

MOST_ORDERS = 5040


def gradients(relaxation, product, s, tau, *, p=1.0, metric=None, mask=None, extra=None, cotangent):
    """Return the value of a product, and the mean over orders of the gradients of its loss.

    The loss is sum(cotangent * value). Rows are positions. "Descending" means position 0 is that
    of the largest score. Under a mask, valid results come first in both directions.

    Args:
        relaxation: "softsort", "neuralsort", "softrank", "transport" (these have a matrix, and
            every product); "approximate_rank", "fast_soft_rank_l2", "fast_soft_rank_kl" (rank and
            rank_descending alone); "fast_soft_sort_l2", "fast_soft_sort_kl" (sort alone).
        product: One of those at the head of this file.
        s: The scores, (n,). Equal scores are tied, also 0.0 and -0.0. Infinities are allowed, NaN
            only where masked. For "knn" the pair (query, neighbors).
        tau: The temperature, or epsilon: one positive number. For "softrank" it is the variance
            of the noise.
        p: The power of |a - b|^p, for "softsort" alone.
        metric: A callable d(a, b) that works element by element, instead of p. It is called with
            the pairs that differ, never with a == b.
        mask: (n,) True where an item takes part.
        extra: What the product needs besides, see above.
        cotangent: The weights of the value in the loss; the shape of the value.

    Returns:
        value: The value of the product.
        ds: Gradient for the scores, (n,). For "knn" a pair: for the query and the neighbors.
        dtau: Gradient for tau, ().
        dextra: Gradient for v or u, or None for other products.

    Raises:
        ValueError: The relaxation lacks the product; a valid score is NaN; there are more than
            5040 orders; or the isotonic solution of FastSoftSort or FastSoftRank has a kink here.
    """
    _check(relaxation, product, p, metric)
    leaves = [double(a) for a in s] if product == "knn" else [double(s)]
    layout = _Layout(_scores_of(leaves), mask)
    orders = layout.orders(every=product == "sorted" or relaxation in WITH_SORT)
    weighted = product in ("apply", "transposed")
    inputs = leaves + [double(tau)] + ([double(extra)] if weighted else [])
    copies = [a.expand(len(orders), *a.shape).clone().requires_grad_() for a in inputs]
    count = len(leaves)
    case = _Case(layout, orders, copies[:count], copies[count], copies[-1] if weighted else extra)
    value = _value(case, relaxation, product, p, metric)
    if not torch.allclose(
        value, value[:1].expand_as(value), rtol=VALUES["float64"], equal_nan=True
    ):
        raise RuntimeError("The value must not depend on the order of tied scores.")
    means = _mean_gradients(value, copies, double(cotangent))
    ds = tuple(means[:2]) if product == "knn" else means[0]
    return value[0].detach(), ds, means[count], means[-1] if weighted else None


def all_orders(values):
    """Return every order that sorts the values in decreasing order.

    Args:
        values: A list of finite numbers.

    Returns:
        A list of tuples of indices: one for each combination of orders of the tied groups.
    """
    stable = sorted(range(len(values)), key=lambda j: -values[j])
    groups = [list(group) for _, group in itertools.groupby(stable, key=lambda j: values[j])]
    number = math.prod(math.factorial(len(group)) for group in groups)
    if number > MOST_ORDERS:
        raise ValueError(f"Expected at most {MOST_ORDERS} orders, received {number}.")
    choices = itertools.product(*(itertools.permutations(group) for group in groups))
    return [sum(choice, ()) for choice in choices]


def abs_closed_form(weights):
    """Return the closed formula of the rule for p = 1: the coincident pairs of one tied group.

    Args:
        weights: C, (m, m): the derivative of the loss with respect to the distance of position i
            and item k, both of the same tied group.

    Returns:
        (m,): what the items receive through these pairs. With a_i = m - 1 - 2 i, item k receives
        -sum_i C_ik a_i / m + sum_i sum_{j != k} C_ij a_i / (m (m - 1)).
    """
    m = len(weights)
    a = m - 1 - 2.0 * np.arange(m)
    column = a @ weights
    return -column / m + (column.sum() - column) / (m * (m - 1))


def _check(relaxation, product, p, metric):
    """Raise ValueError where the relaxation lacks the product."""
    if relaxation not in _PRODUCTS:
        raise ValueError(f"Expected a relaxation of {sorted(_PRODUCTS)}, received {relaxation!r}.")
    if product not in _PRODUCTS[relaxation]:
        raise ValueError(f"{relaxation} has {sorted(_PRODUCTS[relaxation])}, not {product!r}.")
    if relaxation != "softsort" and (p != 1.0 or metric is not None):
        raise ValueError(f"p and metric belong to softsort; {relaxation} has none.")


def _mean_gradients(value, copies, cotangent):
    """Return the mean over orders of the gradient for each of the copied inputs."""
    if cotangent.shape != value.shape[1:]:
        raise ValueError(f"Expected a cotangent {tuple(value.shape[1:])}, got {cotangent.shape}.")
    if not value.requires_grad:
        return [torch.zeros_like(copy[0]) for copy in copies]
    found = torch.autograd.grad(value, copies, cotangent.expand_as(value), allow_unused=True)
    return [
        torch.zeros_like(copy[0]) if gradient is None else gradient.mean(0)
        for copy, gradient in zip(copies, found, strict=False)
    ]


class _Layout:
    """Which items are valid, finite or infinite, and which rows of P are theirs.

    Attributes:
        n: The number of items.
        valid: (n,) True where an item takes part.
        top, finite, bottom: Indices of the valid items at +inf, between, and at -inf.
        count: The number of valid items.
        rows: The rows of the finite items, in descending order of the scores.
        usable: (n,) True where an item is valid and finite.
        scores: The scores, (n,).
    """

    def __init__(self, scores, mask):
        self.n = len(scores)
        self.scores = scores
        everything = torch.ones(self.n, dtype=torch.bool)
        self.valid = everything if mask is None else torch.as_tensor(mask, dtype=torch.bool)
        items = [j for j in range(self.n) if self.valid[j]]
        if any(math.isnan(scores[j]) for j in items):
            raise ValueError("Expected valid scores that are numbers, received NaN.")
        self.top = [j for j in items if scores[j] == INF]
        self.bottom = [j for j in items if scores[j] == -INF]
        self.finite = [j for j in items if math.isfinite(scores[j])]
        self.count = len(items)
        self.rows = list(range(len(self.top), len(self.top) + len(self.finite)))
        self.usable = self.valid & torch.isfinite(scores)

    def orders(self, every):
        """Return orders of the finite items, (number of orders, m): every one, or one alone."""
        values = self.scores[self.finite]
        if not every:
            return torch.argsort(values, descending=True)[None]
        found = all_orders(values.tolist())
        return torch.tensor(found, dtype=torch.long).reshape(len(found), len(values))


class _Case:
    """One call: the layout, the orders, and a copy of the inputs for each order.

    Attributes:
        layout: As above.
        orders: (number of orders, m).
        scores: (number of orders, n): the scores, 0 where masked or infinite.
        block: (number of orders, m): the scores of the finite items.
        tau: (number of orders,).
        extra: What the product needs besides.
        log_p: (number of orders, n, n): log P, -inf where P is 0. None without a matrix.
        p: (number of orders, n, n): P.
    """

    def __init__(self, layout, orders, leaves, tau, extra):
        self.layout = layout
        self.orders = orders
        self.tau = tau
        self.extra = extra
        scores = leaves[0] if len(leaves) == 1 else _negative_distances(*leaves, layout.usable)
        self.scores = torch.where(layout.usable, scores, 0.0)
        self.block = self.scores[:, layout.finite]
        self.log_p = None
        self.p = None

    def set_matrix(self, log_block):
        """Put log P of the finite items, (number of orders, m, m), into the whole matrix."""
        layout = self.layout
        self.log_p = torch.full((len(self.orders), layout.n, layout.n), -INF, dtype=torch.float64)
        row = 0
        for items in (layout.top, layout.finite, layout.bottom):
            rows = torch.arange(row, row + len(items))
            uniform = torch.tensor(-math.log(max(len(items), 1)), dtype=torch.float64)
            block = log_block if items is layout.finite else uniform
            self.log_p[:, rows[:, None], torch.tensor(items, dtype=torch.long)[None]] = block
            row += len(items)
        self.p = self.log_p.exp()

    def by_position(self, block):
        """Put (number of orders, m) finite results between infinities; zeros come last."""
        layout = self.layout
        out = torch.zeros(len(self.orders), layout.n, dtype=torch.float64)
        out[:, : len(layout.top)] = INF
        out[:, layout.rows] = block
        out[:, layout.rows[-1] + 1 if layout.rows else len(layout.top) : layout.count] = -INF
        return out

    def ascending(self, descending):
        """Reverse the valid positions, dimension 1; zeros stay last."""
        count = self.layout.count
        return torch.cat([descending[:, :count].flip(1), descending[:, count:]], 1)


def _scores_of(leaves):
    """Return the detached scores: those given, or the negative squared distances of a kNN."""
    if len(leaves) == 1:
        return leaves[0]
    query, neighbors = leaves
    return -((query - neighbors) ** 2).sum(-1)


def _negative_distances(query, neighbors, usable):
    """Return -|query - neighbor|^2, (number of orders, n), 0 where a neighbor is not usable."""
    safe = torch.where(usable[:, None], neighbors, 0.0)
    return torch.where(usable, -((query[:, None] - safe) ** 2).sum(-1), 0.0)


_PRODUCTS = dict.fromkeys(RANKS, ("rank", "rank_descending"))


_PRODUCTS |= dict.fromkeys(FAST_SORTS, ("sort",))


_PRODUCTS |= {name: tuple(MATRIX_PRODUCTS) for name in MATRICES}


def _value(case, relaxation, product, p, metric):
    """Return the value of the product, with a leading dimension for the orders."""
    if relaxation in FAST_SORTS:
        return fast_sort(case, FAST_SORTS[relaxation])
    if relaxation in RANKS and product in ("rank", "rank_descending"):
        return own_ranks(case, RANKS[relaxation], descending=product == "rank_descending")
    if product == "sorted":
        return sorted_scores(case)
    case.set_matrix(MATRICES[relaxation](case.block, case.orders, case.tau, p, metric))
    return MATRIX_PRODUCTS[product](case)
