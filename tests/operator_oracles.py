"""Float64 NumPy and SciPy oracles for the operators beside SoftSort, from their definitions.

Every function takes ONE vector (`oracles.over_rows` loops over a batch); `mask` is True where an
item takes part. Rows of a matrix are positions, the largest score first; columns are items. Masked
items are as if removed: their column and rank are zero, and so are the positions past the valid
count. Infinite items go to their end and form tied blocks of their own; the finite ones are what
the operator makes of them alone. A NaN among the valid scores makes every number of the result NaN.
It imports nothing of the library it is there to test.
"""

import itertools
import math

import mpmath
import numpy as np
from scipy.integrate import quad
from scipy.special import expit, log_softmax, ndtr, softmax

# ---------------------------------------------------------------- the contract, for all of them


def _blocks(s, mask):
    """The scores, and the valid items as index vectors (+inf, finite, -inf); None if one is NaN."""
    s = np.asarray(s, dtype=np.float64)
    valid = np.ones(len(s), dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
    if np.isnan(s[valid]).any():
        return s, None
    kinds = (s == np.inf, np.isfinite(s), s == -np.inf)
    return s, [np.flatnonzero(valid & kind) for kind in kinds]


def _matrix(s, mask, of_finite):
    """Lay the blocks on the diagonal: uniform, of_finite(the finite scores), uniform."""
    s, blocks = _blocks(s, mask)
    if blocks is None:
        return np.full((len(s), len(s)), np.nan)
    P, start = np.zeros((len(s), len(s))), 0
    for items in blocks:
        if len(items):
            finite = np.isfinite(s[items[0]])
            rows = np.arange(start, start + len(items))
            P[np.ix_(rows, items)] = of_finite(s[items]) if finite else 1 / len(items)
        start += len(items)
    return P


def _ranks(s, mask, descending, of_finite):
    """Rank with of_finite, which ranks descending; ascending is the same for -s."""
    s = np.asarray(s, dtype=np.float64)
    s, blocks = _blocks(s if descending else -s, mask)
    if blocks is None:
        return np.full(len(s), np.nan)
    ranks, start = np.zeros(len(s)), 0
    for items in blocks:
        if len(items):
            finite = np.isfinite(s[items[0]])
            ranks[items] = start + (of_finite(s[items]) if finite else (1 + len(items)) / 2)
        start += len(items)
    return ranks


def _sort(s, mask, descending, of_finite):
    """Sort with of_finite, which sorts descending; ascending is the negative of that of -s."""
    sign = 1.0 if descending else -1.0
    s, blocks = _blocks(sign * np.asarray(s, dtype=np.float64), mask)
    if blocks is None:
        return np.full(len(s), np.nan)
    top, finite, bottom = (s[items] for items in blocks)
    results = np.concatenate([top, of_finite(finite) if len(finite) else finite, bottom])
    return np.concatenate([sign * results, np.zeros(len(s) - len(results))])


# ---------------------------------------------------------------- NeuralSort

# The logits of four scores s1 >= s2 >= s3 >= s4, by hand: row i, column j holds the coefficients of
# (s1, s2, s3, s4) in logit (i, j) minus logit (i, i). The softmax of a row does not see the shift.
NEURALSORT_4X4 = [
    [[0, 0, 0, 0], [-1, 1, 0, 0], [-1, -2, 3, 0], [-1, -2, -2, 5]],
    [[-1, 1, 0, 0], [0, 0, 0, 0], [0, -1, 1, 0], [0, -1, -2, 3]],
    [[-3, 2, 1, 0], [0, -1, 1, 0], [0, 0, 0, 0], [0, 0, -1, 1]],
    [[-5, 2, 2, 1], [0, -3, 2, 1], [0, 0, -1, 1], [0, 0, 0, 0]],
]


def neuralsort_logits(s):
    """Row i = 1..n: (n + 1 - 2i) s - A 1 with A_jk = |s_j - s_k|; finite scores only."""
    s = np.asarray(s, dtype=np.float64)
    n = len(s)
    A = np.abs(s[:, None] - s[None, :])
    i = np.arange(1, n + 1)
    return (n + 1 - 2 * i)[:, None] * s - A @ np.ones(n)


def neuralsort_matrix(s, tau, mask=None):
    """Row i = softmax(((n + 1 - 2i) s - A 1) / tau): Grover et al., ICLR 2019."""
    return _matrix(s, mask, lambda x: softmax(neuralsort_logits(x) / float(tau), axis=1))


# ---------------------------------------------------------------- Sinkhorn and optimal transport


def sinkhorn_matrix(logits, tau, iterations):
    """exp(logits / tau), its columns and then its rows normalised, again and again.

    Mena et al., ICLR 2018. The rows are last, so it is they that sum to one.
    """
    L = np.asarray(logits, dtype=np.float64) / float(tau)
    if np.isnan(L).any():
        return np.full(L.shape, np.nan)
    for _ in range(iterations):
        L = log_softmax(log_softmax(L, axis=0), axis=1)
    return np.exp(L)


def sinkhorn_limit(logits, tau):
    """The doubly stochastic diag(a) exp(logits / tau) diag(b), by Newton's method."""
    L = np.asarray(logits, dtype=np.float64) / float(tau)
    if np.isnan(L).any():
        return np.full(L.shape, np.nan)
    return _plan(L, np.ones(len(L)))


def _plan(L, row_sums):
    """P_ij = exp(L_ij + f_i + g_j) with these row sums and with columns that sum to one.

    g normalises the columns. What is left is convex in f, with the row sums' error as gradient, and
    Newton's method solves it; f is followed from a nearly constant L, where 0 is a good start.
    The rows' error bounds that of P: to correct the sums is to send currents through a network of
    conductances P_ij, and no current of a single link exceeds the sum of those that are sent.
    """
    f = np.zeros(len(L))
    spread = np.ptp(L, axis=0).max(initial=1.0)
    for halvings in range(math.ceil(math.log2(spread)), -1, -1):
        f = _newton(L / 2**halvings, row_sums, 2 * f)
    P, error = _normalised(L, row_sums, f)
    if np.abs(error).sum() > 1e-14 * (len(L) + spread):  # what the rounding of L + f explains
        raise ArithmeticError(f"rows are off by {np.abs(error).sum()}: too ill-conditioned")
    return P


def _normalised(L, row_sums, f):
    """P with columns that sum to one, and by how much its rows are off."""
    P = softmax(L + f[:, None], axis=0)
    return P, P.sum(axis=1) - row_sums


def _newton(L, row_sums, f):
    """Take damped Newton steps until rounding lets the rows' error fall no further."""
    while True:
        P, error = _normalised(L, row_sums, f)
        hessian = np.diag(P.sum(axis=1)) - P @ P.T
        # A constant added to f changes nothing: the Hessian is singular, and that is no harm.
        step = np.linalg.lstsq(hessian, -error, rcond=None)[0]
        for size in 0.5 ** np.arange(30):
            new = _normalised(L, row_sums, f + size * step)[1]
            if np.abs(new).sum() < (1 - size / 10) * np.abs(error).sum():
                f = f + size * step
                break
        else:
            return f


def transport_matrix(s, epsilon, mask=None, sizes=None):
    """The doubly stochastic P = diag(a) exp(y z^T / epsilon) diag(b): Cuturi et al., NeurIPS 2019.

    z is s with mean 0 and (population) standard deviation 1, or 0 if all scores are equal; y is
    evenly spaced from 1 at the first position to 0 at the last. `sizes` cuts the finite positions
    into groups of neighbours: a group is one target at its mean y with row sum `size`, and its
    positions share its row equally.
    """

    def of_finite(x):
        groups = np.asarray(np.ones(len(x)) if sizes is None else sizes, dtype=int)
        starts = np.cumsum(groups) - groups
        y = np.add.reduceat(np.linspace(1, 0, len(x)), starts) / groups
        plan = _plan(np.outer(y, _standardised(x)) / float(epsilon), groups)
        return np.repeat(plan / groups[:, None], groups, axis=0)

    return _matrix(s, mask, of_finite)


def _standardised(x):
    """(x - mean) / std, or 0 if all are equal."""
    x = x - x.min()  # first, for the mean of equal numbers may differ from them by a rounding
    if not x.any():
        return x
    x = x / x.max()  # and no square underflows
    return (x - x.mean()) / x.std()


# ---------------------------------------------------------------- SoftRank


def _but(j, x):
    """All of x but its element j."""
    return np.delete(x, j)


def softrank_expected(s, tau, mask=None, descending=True):
    """E rank_i = 1 + sum_{j != i} Phi((s_j - s_i) / sqrt(2 tau)): Taylor et al., WSDM 2008."""

    def of_finite(x):
        width = math.sqrt(2 * tau)
        return np.array([1 + ndtr((_but(i, x) - x[i]) / width).sum() for i in range(len(x))])

    return _ranks(s, mask, descending, of_finite)


def softrank_distribution(s, tau, mask=None):
    """P_rj = the probability that s_j + N(0, tau) is the r-th largest of all such; n up to 6.

    The integral over item j's noise u, in standard deviations, of its density times the sum over
    the sets of r items that may lie above it while the others lie below. r counts from 0.
    """

    def of_finite(x):
        P = np.zeros((len(x), len(x)))
        for j, r in np.ndindex(P.shape):
            P[r, j] = _position_probability((_but(j, x) - x[j]) / math.sqrt(tau), r)
        return P

    return _matrix(s, mask, of_finite)


def _position_probability(others, r):
    """Probability that N(0, 1) has exactly r of the independent N(others_k, 1) above it."""
    sets = list(itertools.combinations(range(len(others)), r))

    def integrand(u):
        above = [math.erfc((u - m) / math.sqrt(2)) / 2 for m in others]
        below = [math.erfc((m - u) / math.sqrt(2)) / 2 for m in others]
        total = 0.0
        for chosen in sets:
            total += math.prod(above[k] if k in chosen else below[k] for k in range(len(others)))
        return total * math.exp(-u * u / 2) / math.sqrt(2 * math.pi)

    # Beyond 10 standard deviations there is less than 1e-22. Each half is smooth on a scale of one.
    halves = [quad(integrand, *ends, epsabs=1e-14, epsrel=1e-12) for ends in ((-10, 0), (0, 10))]
    return sum(value for value, _ in halves)


def softrank_log_prob(s, tau, permutation):
    """Log of the product of P_r,permutation_r, however small; 30 digits; 2 to 4 items.

    s may hold numbers of mpmath. Beyond 12 standard deviations from the largest value of an
    integrand there is less than 1e-31 of it: its logarithm is no flatter than -u^2 / 2.
    """
    with mpmath.workdps(30):
        s = [mpmath.mpf(x) / mpmath.sqrt(tau) for x in s]
        return mpmath.fsum(
            mpmath.log(_far_probability([x - s[j] for x in s[:j] + s[j + 1 :]], r))
            for r, j in enumerate(permutation)
        )


def _far_probability(others, r):
    """As `_position_probability`, with mpmath, integrated around the largest value."""

    def integrand(u):
        count = [mpmath.mpf(1)]
        for m in others:
            above, below = (mpmath.erfc(x / mpmath.sqrt(2)) / 2 for x in (u - m, m - u))
            count = [
                (count[k] * below if k < len(count) else 0) + (count[k - 1] * above if k else 0)
                for k in range(len(count) + 1)
            ]
        return count[r] * mpmath.npdf(u)

    peak = max(range(int(min(0, *others)) - 1, int(max(0, *others)) + 2), key=integrand)
    # No narrower than a deviation of 1/2 for up to four items: a step of 1/6 is exact to 1e-30.
    step = mpmath.mpf(1) / 6
    return step * mpmath.fsum(integrand(peak + step * k) for k in range(-72, 73))


def softrank_recursion(s, tau, mask=None):
    """P_rj = the probability that item j loses r comparisons, which are independent.

    It wins against k with probability Phi((s_j - s_k) / sqrt(2 tau)): Taylor et al., WSDM 2008. The
    coefficients of the product over k of (win + lose x).
    """

    def of_finite(x):
        columns = []
        for j in range(len(x)):
            column = np.ones(1)
            for gap in (x[j] - _but(j, x)) / math.sqrt(2 * tau):
                column = np.convolve(column, [ndtr(gap), ndtr(-gap)])
            columns.append(column)
        return np.stack(columns, axis=1)

    return _matrix(s, mask, of_finite)


# ---------------------------------------------------------------- ApproxNDCG's rank


def approximate_rank(s, tau, mask=None, descending=True):
    """rank_i = 1 + sum_{j != i} sigmoid((s_j - s_i) / tau): Qin et al., 2010."""

    def of_finite(x):
        return np.array([1 + expit((_but(i, x) - x[i]) / tau).sum() for i in range(len(x))])

    return _ranks(s, mask, descending, of_finite)


# ---------------------------------------------------------------- fast soft sort and rank


def _mean(x):
    return math.fsum(x) / len(x)


def _logsumexp(x):
    top = x.max()
    return top + math.log(math.fsum(np.exp(x - top)))


_POOL = {"l2": _mean, "kl": _logsumexp}


def _projection(a, b, pool):
    """Compute a - v, v the decreasing isotonic solution worth pool(a) - pool(b) on a block.

    v_i = min_{j <= i} max_{k >= i} value(j..k). From the block B where v_i is attained, the result
    is a_i - pool(a_B) + pool(b_B): no digits are lost when a is far larger than b.
    """
    n = len(a)
    A, B = np.full((n, n), np.nan), np.full((n, n), np.nan)
    for j in range(n):
        for k in range(j, n):
            A[j, k], B[j, k] = pool(a[j : k + 1]), pool(b[j : k + 1])
    value, out = A - B, np.zeros(n)
    for i in range(n):
        ends = [i + np.argmax(value[j, i:]) for j in range(i + 1)]
        j = np.argmin([value[j, k] for j, k in enumerate(ends)])
        out[i] = a[i] - A[j, ends[j]] + B[j, ends[j]]
    return out


def fast_soft_rank(s, epsilon, regularization, mask=None, descending=False):
    """Blondel et al., ICML 2020: the projection of s / epsilon onto the permutations of 1..n.

    With t = s / epsilon in decreasing order and w = (n, ..., 1): t - v with v the decreasing vector
    nearest to t - w ("l2"), or exp(t - v) with v the decreasing minimiser of
    sum_i exp(t_i - v_i) + w_i v_i ("kl"). Descending ranks are those of -s.
    """
    pool = _POOL[regularization]

    def of_finite(x):
        theta = -x / float(epsilon)
        order = np.argsort(-theta, kind="stable")
        w = np.arange(len(x), 0, -1.0)
        ranks = np.zeros(len(x))
        if regularization == "kl":
            ranks[order] = np.exp(_projection(theta[order], np.log(w), pool))
        else:
            ranks[order] = _projection(theta[order], w, pool)
        return ranks

    return _ranks(s, mask, descending, of_finite)


def fast_soft_sort(s, epsilon, regularization, mask=None, descending=False):
    """Blondel et al., ICML 2020: the projection of (n, ..., 1) / epsilon onto s's permutations.

    With t = s in decreasing order and u = (n, ..., 1) / epsilon: u - v, v decreasing, nearest to
    u - t ("l2"), or with logsumexp(u) - logsumexp(t) on each block ("kl"). Ascending is the
    negative of the descending sort of -s.
    """

    def of_finite(x):
        u = np.arange(len(x), 0, -1.0) / float(epsilon)
        return _projection(u, -np.sort(-x), _POOL[regularization])

    return _sort(s, mask, descending, of_finite)


# ---------------------------------------------------------------- Plackett-Luce


def plackett_luce_log_prob(scores, permutation, mask=None):
    """sum_i s_{p_i} - log sum_{k >= i} exp(s_{p_k}) over the valid items, first in `permutation`.

    Items of infinite log-weight come first (+inf) or last (-inf), in uniformly random order; a
    permutation that breaks this has log-probability -inf.
    """
    s, blocks = _blocks(scores, mask)
    if blocks is None:
        return math.nan
    total, start = 0.0, 0
    for items in blocks:
        placed = np.asarray(permutation, dtype=int)[start : start + len(items)]
        if set(placed.tolist()) != set(items.tolist()):
            return -math.inf
        x = s[placed] if np.isfinite(s[items]).all() else np.zeros(len(items))
        total += math.fsum(x[i] - _logsumexp(x[i:]) for i in range(len(x)))
        start += len(items)
    return total
