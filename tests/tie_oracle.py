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

`test_tie_oracle.py` checks it.
"""

import itertools
import math

import numpy as np
import torch

INF = math.inf
MOST_ORDERS = 5040
KINK = 1e-9

# ------------------------------------------------------------------------------------------------
# The public function
# ------------------------------------------------------------------------------------------------


def gradients(relaxation, product, s, tau, *, p=1.0, metric=None, mask=None, extra=None, cotangent):
    """Return the value of a product, and the mean over orders of the gradients of its loss.

    The loss is sum(cotangent * value). Rows are positions. "Descending" means position 0 is that
    of the largest score. Under a mask, valid results come first in both directions.

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

    Args:
        relaxation: "softsort", "neuralsort", "softrank", "transport" (these have a matrix, and
            every product); "approximate_rank", "fast_soft_rank_l2", "fast_soft_rank_kl" (rank and
            rank_descending alone); "fast_soft_sort_l2", "fast_soft_sort_kl" (sort alone).
        product: One of those above.
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
    leaves = [_double(a) for a in s] if product == "knn" else [_double(s)]
    layout = _Layout(_scores_of(leaves), mask)
    orders = layout.orders(every=product == "sorted" or relaxation in _WITH_SORT)
    weighted = product in ("apply", "transposed")
    inputs = leaves + [_double(tau)] + ([_double(extra)] if weighted else [])
    copies = [a.expand(len(orders), *a.shape).clone().requires_grad_() for a in inputs]
    count = len(leaves)
    case = _Case(layout, orders, copies[:count], copies[count], copies[-1] if weighted else extra)
    value = _value(case, relaxation, product, p, metric)
    if not torch.allclose(value, value[:1].expand_as(value), rtol=1e-12, equal_nan=True):
        raise RuntimeError("The value must not depend on the order of tied scores.")
    means = _mean_gradients(value, copies, _double(cotangent))
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


def _double(a):
    """Return a detached float64 copy."""
    return torch.as_tensor(a, dtype=torch.float64).detach().clone()


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


# ------------------------------------------------------------------------------------------------
# Scores, blocks and orders
# ------------------------------------------------------------------------------------------------


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


# ------------------------------------------------------------------------------------------------
# The relaxations that have a matrix: log P of the finite items, (number of orders, m, m)
# ------------------------------------------------------------------------------------------------


def _softsort(s, order, tau, p, metric):
    """softmax(-d(x_i, s_j) / tau), with x = s[order]."""
    x = s.gather(1, order)
    gap = x[:, :, None] - s[:, None, :]
    same = gap.detach() == 0
    if metric is not None:
        a = x[:, :, None].expand_as(gap)[~same]
        b = s[:, None, :].expand_as(gap)[~same]
        distance = torch.zeros_like(gap).masked_scatter(~same, metric(a, b))
    elif p == 1:
        place = order.argsort(1)[:, None, :]
        position = torch.arange(order.shape[1])[None, :, None]
        distance = torch.where(same, torch.sign(place - position) * gap, gap.abs())
    else:
        distance = torch.where(same, 0.0, torch.where(same, 1.0, gap).abs() ** p)
    return torch.log_softmax(-distance / tau[:, None, None], 2)


def _neuralsort(s, order, tau, p, metric):
    """softmax([(n + 1 - 2 i) s - A_s 1] / tau), A_s = |s_j - s_k|; torch has sign(0) = 0."""
    n = s.shape[1]
    scale = n + 1 - 2 * torch.arange(1, n + 1, dtype=torch.float64)
    spread = (s[:, :, None] - s[:, None, :]).abs().sum(2)
    logits = scale[None, :, None] * s[:, None, :] - spread[:, None, :]
    return torch.log_softmax(logits / tau[:, None, None], 2)


def _softrank(s, order, tau, p, metric):
    """Log of the probability that item i is the r-th largest, with noise of variance tau.

    Given the noise z of item i, in standard deviations, item j wins with probability
    Phi((s_j - s_i) / sigma - z), and the number of winners is a sum of independent coins. The
    trapezoidal rule integrates over z; for a smooth function it is exact to rounding.
    """
    n = s.shape[1]
    z = torch.arange(-14.0, 14.1, 0.2, dtype=torch.float64)
    density = 0.2 * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    u = (s[:, None, :, None] - s[:, :, None, None]) / tau.sqrt()[:, None, None, None] - z
    itself = torch.eye(n, dtype=torch.bool)[:, :, None]
    wins = torch.where(itself, 0.0, torch.special.ndtr(u))
    loses = torch.where(itself, 1.0, torch.special.ndtr(-u))
    number = torch.zeros(*s.shape, len(z), n, dtype=torch.float64)
    number[..., :1] = 1.0
    for j in range(n):
        more = torch.cat([torch.zeros_like(number[..., :1]), number[..., :-1]], -1)
        number = number * loses[:, :, j, :, None] + more * wins[:, :, j, :, None]
    chance = torch.einsum("ojzr,z->orj", number, density)
    return torch.where(chance > 0, torch.where(chance > 0, chance, 1.0).log(), -INF)


def _transport(s, order, tau, p, metric):
    """Log of the doubly stochastic P that maximises <P, y z^T> + tau * entropy, converged.

    y are evenly spaced targets from 1 to 0, z the standardised scores. P_i is the softmax over j
    of (y_i z_j + g_j) / tau, with g such that columns sum to 1. g is found without a gradient; one
    Newton step from there, with a fixed Jacobian, changes no value and has its derivative.
    """
    n = s.shape[1]
    if bool((s == s[:, :1]).all()):
        return torch.full((len(s), n, n), -math.log(max(n, 1)), dtype=torch.float64)
    z = (s - s.mean(1, keepdim=True)) / s.std(1, unbiased=False, keepdim=True)
    gain = torch.linspace(1.0, 0.0, n, dtype=torch.float64)[None, :, None] * z[:, None, :]
    scale = tau[:, None, None]
    potential, inverse = _column_potential(gain[0].detach(), float(tau[0].detach()))
    columns = torch.log_softmax((gain + potential) / scale, 2).exp().sum(1)
    potential = potential - (columns - 1.0) @ inverse
    return torch.log_softmax((gain + potential[:, None, :]) / scale, 2)


def _column_potential(gain, tau):
    """Return g with unit column sums of softmax_j((gain_ij + g_j) / tau), and d g / d column.

    A damped Newton method for the convex function sum_i tau logsumexp_j(...) - sum_j g_j, after
    some iterations of Sinkhorn.
    """

    def objective(g):
        return tau * torch.logsumexp((gain + g) / tau, 1).sum() - g.sum()

    g = torch.zeros(gain.shape[1], dtype=torch.float64)
    for _ in range(100):
        g = g - tau * torch.logsumexp(torch.log_softmax((gain + g) / tau, 1), 0)
    for _ in range(200):
        matrix = torch.softmax((gain + g) / tau, 1)
        error = matrix.sum(0) - 1.0
        # diag(sums of columns) - P^T P, whose rows sum to 0: nothing large is subtracted.
        beside = (matrix.T @ matrix).fill_diagonal_(0.0)
        hessian = (torch.diag(beside.sum(0)) - beside) / tau
        # A constant added to g changes nothing: the first stays as it is.
        inverse = torch.zeros_like(hessian)
        inverse[1:, 1:] = torch.linalg.inv(hessian[1:, 1:])
        if error.abs().max() < 1e-13:
            return g, inverse
        step, size = inverse @ error, 1.0
        while objective(g - size * step) > objective(g) + 1e-15 and size > 1e-6:
            size /= 2
        g = g - size * step
    if error.abs().max() > 1e-11:
        raise RuntimeError("The transport did not converge; use a larger epsilon.")
    return g, inverse


# ------------------------------------------------------------------------------------------------
# The relaxations without a matrix
# ------------------------------------------------------------------------------------------------


def _pairwise_ranks(above):
    """Return a function of the block's scores: 1 + sum over j != i of above(s_i - s_j, tau)."""

    def ranks(s, tau):
        others = ~torch.eye(s.shape[1], dtype=torch.bool)
        chance = above(s[:, :, None] - s[:, None, :], tau[:, None, None])
        return 1 + torch.where(others, chance, 0.0).sum(2)

    return ranks


def _fast_ranks(kl):
    """Return a function of the block's scores: projection of s / epsilon onto the ranks.

    For "kl" it is exp of the projection, in the sense of KL, onto the logarithms of the ranks. The
    ranks are those among the finite items, 1, 2, and so on: what is infinite leaves them untouched.
    """

    def ranks(s, tau):
        n = s.shape[1]
        order = torch.argsort(s.detach(), 1, descending=True)
        w = (1 + torch.arange(n, dtype=torch.float64)).flip(0).expand_as(s)
        theta = s.gather(1, order) / tau[:, None]
        out = _project(theta, w.log(), True).exp() if kl else _project(theta, w, False)
        return out.gather(1, order.argsort(1))

    return ranks


def _fast_sort(case, kl):
    """-projection of (n, ..., 1) / epsilon onto the permutahedron of -s: ascending positions."""
    n = case.block.shape[1]
    w = torch.arange(n, 0, -1, dtype=torch.float64) / case.tau[:, None]
    out = -_project(w, -case.block.gather(1, case.orders.flip(1)), kl)
    return case.ascending(case.by_position(out.flip(1)))


def _project(a, b, kl):
    """Project a onto the permutahedron of b; both decreasing, (number of orders, n).

    The result is a - v. v is constant on pools: mean(a) - mean(b) there, or with logsumexp in the
    place of the mean for "kl"; it does not increase from pool to pool.
    """
    level = torch.logsumexp if kl else torch.mean
    parts = [a[:, :0]]
    for first, last in _pools(a[0].tolist(), b[0].tolist(), kl):
        x, y = a[:, first:last], b[:, first:last]
        parts.append(x - level(x, 1, keepdim=True) + level(y, 1, keepdim=True))
    return torch.cat(parts, 1)


def _pools(a, b, kl):
    """Return the pools (first, last) of the isotonic solution by pooling adjacent violators."""

    def level(first, last):
        x, y = np.array(a[first:last]), np.array(b[first:last])
        if kl:
            return np.logaddexp.reduce(x) - np.logaddexp.reduce(y)
        return x.mean() - y.mean()

    pools = []
    for i in range(len(a)):
        pools.append((i, i + 1))
        while len(pools) > 1 and level(*pools[-2]) < level(*pools[-1]):
            (first, _), (_, last) = pools[-2], pools[-1]
            pools[-2:] = [(first, last)]
    cuts = [(first, cut, last) for first, last in pools for cut in range(first + 1, last)]
    cuts += [(*before, after[1]) for before, after in itertools.pairwise(pools)]
    if any(abs(level(i, j) - level(j, k)) < KINK for i, j, k in cuts):
        raise ValueError("The isotonic solution has a kink here; move the scores or epsilon.")
    return pools


def _own_ranks(case, ranks, descending):
    """Return the ranks of a relaxation that has its own, (number of orders, n)."""
    layout = case.layout
    low, high = (layout.top, layout.bottom) if descending else (layout.bottom, layout.top)
    out = torch.zeros(len(case.orders), layout.n, dtype=torch.float64)
    out[:, low] = (1 + len(low)) / 2
    out[:, high] = len(low) + len(layout.finite) + (1 + len(high)) / 2
    block = -case.block if descending else case.block
    out[:, layout.finite] = len(low) + ranks(block, case.tau)
    return out


# ------------------------------------------------------------------------------------------------
# The products
# ------------------------------------------------------------------------------------------------


def _apply(case):
    valid = case.layout.valid.reshape(-1, *[1] * (case.extra.dim() - 2))
    return torch.einsum("oij,oj...->oi...", case.p, torch.where(valid, case.extra, 0.0))


def _transposed(case):
    taken = torch.arange(case.layout.n) < case.layout.count
    taken = taken.reshape(-1, *[1] * (case.extra.dim() - 2))
    return torch.einsum("oij,oi...->oj...", case.p, torch.where(taken, case.extra, 0.0))


def _average_position(case, positions):
    total = case.p.sum(1)
    average = torch.einsum("oij,i->oj", case.p, positions) / torch.where(total > 0, total, 1.0)
    return torch.where(case.layout.valid, average, 0.0)


def _rank(case):
    positions = case.layout.count - torch.arange(case.layout.n, dtype=torch.float64)
    return _average_position(case, positions)


def _rank_descending(case):
    return _average_position(case, 1 + torch.arange(case.layout.n, dtype=torch.float64))


def _argsort(case):
    index = torch.arange(case.layout.n, dtype=torch.float64)
    return case.ascending(torch.einsum("oij,j->oi", case.p, index))


def _sort_descending(case):
    soft = torch.einsum("oij,oj->oi", case.p, case.scores)
    return case.by_position(soft[:, case.layout.rows])


def _sort(case):
    return case.ascending(_sort_descending(case))


def _sorted(case):
    return case.by_position(case.block.gather(1, case.orders))


def _topk_mask(case):
    return case.p[:, : case.extra].sum(1)


def _topk(case):
    return _sort_descending(case)[:, : case.extra]


def _quantile(case):
    return _interpolate(_sort(case), case.layout.count, case.extra)


def _interpolate(ascending, count, q):
    """Interpolate between neighbouring positions, (number of orders, ...) as q has dimensions."""
    q = _double(q)
    if count == 0:
        return torch.full((len(ascending), *q.shape), math.nan, dtype=torch.float64)
    at = q * (count - 1)
    low = at.floor()
    part = at - low
    below = ascending[:, low.long()]
    above = ascending[:, (low.long() + 1).clamp(max=count - 1)]
    return torch.where(part == 0, below, (1 - part) * below + part * above)


def _log_prob(case):
    rows = torch.arange(case.layout.count)
    items = torch.as_tensor(case.extra, dtype=torch.long)[: case.layout.count]
    return case.log_p[:, rows, items].sum(1)


def _entropy(case):
    return -(case.p * torch.where(torch.isfinite(case.log_p), case.log_p, 0.0)).sum(2)


def _matrix(case):
    return case.p


def _log_matrix(case):
    return case.log_p


def _knn(case):
    return _topk_mask(case) / max(min(case.extra, case.layout.count), 1)


_MATRICES = {
    "softsort": _softsort,
    "neuralsort": _neuralsort,
    "softrank": _softrank,
    "transport": _transport,
}
_RANKS = {
    "softrank": _pairwise_ranks(lambda gap, tau: torch.special.ndtr(gap / (2 * tau).sqrt())),
    "approximate_rank": _pairwise_ranks(lambda gap, tau: torch.sigmoid(gap / tau)),
    "fast_soft_rank_l2": _fast_ranks(kl=False),
    "fast_soft_rank_kl": _fast_ranks(kl=True),
}
_FAST_SORTS = {"fast_soft_sort_l2": False, "fast_soft_sort_kl": True}
_WITH_SORT = {"softsort", *_FAST_SORTS}

_MATRIX_PRODUCTS = {
    "apply": _apply,
    "transposed": _transposed,
    "rank": _rank,
    "rank_descending": _rank_descending,
    "argsort": _argsort,
    "sort": _sort,
    "sorted": _sorted,
    "topk_mask": _topk_mask,
    "topk": _topk,
    "quantile": _quantile,
    "log_prob": _log_prob,
    "entropy": _entropy,
    "matrix": _matrix,
    "log_matrix": _log_matrix,
    "knn": _knn,
}
_PRODUCTS = dict.fromkeys(_RANKS, ("rank", "rank_descending"))
_PRODUCTS |= dict.fromkeys(_FAST_SORTS, ("sort",))
_PRODUCTS |= {name: tuple(_MATRIX_PRODUCTS) for name in _MATRICES}


def _value(case, relaxation, product, p, metric):
    """Return the value of the product, with a leading dimension for the orders."""
    if relaxation in _FAST_SORTS:
        return _fast_sort(case, _FAST_SORTS[relaxation])
    if relaxation in _RANKS and product in ("rank", "rank_descending"):
        return _own_ranks(case, _RANKS[relaxation], descending=product == "rank_descending")
    if product == "sorted":
        return _sorted(case)
    case.set_matrix(_MATRICES[relaxation](case.block, case.orders, case.tau, p, metric))
    return _MATRIX_PRODUCTS[product](case)
