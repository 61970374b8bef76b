"""A float64 NumPy oracle for SoftSort (Prillo & Eisenschlos, ICML 2020), from the definitions.

    order = stable descending argsort(s),  x = s[order],  P_ij = softmax_j(-d(x_i, s_j) / tau)

Every function takes ONE vector; `over_rows` loops over a batch. `metric` is a positive power p,
meaning d(a, b) = |a - b|^p, or a callable d(a, b) on arrays; d(a, a) is the constant 0. `mask` is
True where an item takes part. A NaN among the valid scores makes every number of every result NaN,
padding included. It imports nothing of the library it is there to test.
"""

import numpy as np

# The paper's Figure 1, as printed: its .70 and .85 are 0.7054 and 0.8438 by the formula, so compare
# with an absolute tolerance of 0.01, not by rounding.
FIGURE_1_SCORES = [2.0, 5.0, 4.0]
FIGURE_1_TAU = 1.0
FIGURE_1_MATRIX = [[0.04, 0.70, 0.26], [0.09, 0.24, 0.67], [0.85, 0.04, 0.11]]


def over_rows(function, *arrays):
    """out[b] = function(arrays[0][b], arrays[1][b], ...) for every b of the batch.

    The batch is arrays[0].shape[:-1] and leads every array; what is left of one after it (a vector,
    a scalar tau, an (n, f) matrix) is its row. A None is passed through. Tuples give tuples.
    """
    arrays = [None if array is None else np.asarray(array) for array in arrays]
    batch = arrays[0].shape[:-1]
    rows = [[None if a is None else a[index] for a in arrays] for index in np.ndindex(*batch)]
    size = len(rows)
    if size == 0:  # an empty batch still has to show the shape of a result
        rows = [[None if a is None else np.ones(a.shape[len(batch) :], a.dtype) for a in arrays]]
    outcomes = [function(*row) for row in rows]

    def stack(results):
        stacked = np.stack(results)
        return stacked[:size].reshape(batch + stacked.shape[1:])

    if isinstance(outcomes[0], tuple):
        return tuple(stack(results) for results in zip(*outcomes, strict=True))
    return stack(outcomes)


def _scores_and_valid(s, mask):
    """The scores in float64 and the mask as a boolean vector, all True where there is none."""
    s = np.asarray(s, dtype=np.float64)
    valid = np.ones(len(s), dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
    return s, valid


def _distance(a, b, metric):
    """d(a, b) = |a - b|^p or metric(a, b), and the constant 0 wherever a == b."""
    with np.errstate(all="ignore"):
        d = metric(a, b) if callable(metric) else np.abs(a - b) ** float(metric)
    return np.where(a == b, 0.0, d)


def softsort_order(s, mask=None):
    """Valid items from the largest to the smallest, ties by index; then the masked, by index."""
    s, valid = _scores_and_valid(s, mask)
    items = np.flatnonzero(valid)
    return np.concatenate([items[np.argsort(-s[items], kind="stable")], np.flatnonzero(~valid)])


def softsort_log_matrix(s, tau, metric=1.0, mask=None):
    """Compute log P_ij = -d(x_i, s_j) / tau - log sum_k exp(-d(x_i, s_k) / tau).

    The sum and the row run over the peers of x_i: the valid finite items when x_i is finite, the
    valid items equal to it when it is infinite. Everything else is log 0.
    """
    s, valid = _scores_and_valid(s, mask)
    n, count = len(s), int(valid.sum())
    if np.isnan(s[valid]).any():
        return np.full((n, n), np.nan)
    x = s[softsort_order(s, valid)]
    log_p = np.full((n, n), -np.inf)
    for i in range(count):
        peers = valid & (np.isfinite(s) if np.isfinite(x[i]) else s == x[i])
        b = s[peers]
        with np.errstate(over="ignore"):
            logits = -_distance(np.full_like(b, x[i]), b, metric) / float(tau)
        top = logits.max()
        log_p[i, peers] = logits - (top + np.log(np.exp(logits - top).sum()))
    return log_p


def softsort_matrix(s, tau, metric=1.0, mask=None):
    """P_ij = softmax_j(-d(x_i, s_j) / tau); zero rows past the valid count, zero masked columns."""
    return np.exp(softsort_log_matrix(s, tau, metric, mask))


def apply(P, v):
    """(P v)_i = sum_j P_ij v_j for v of shape (n,) or (n, f), where 0 * inf counts as 0."""
    P, v = np.asarray(P, dtype=np.float64), np.asarray(v, dtype=np.float64)
    out = np.zeros((P.shape[0], *v.shape[1:]))
    with np.errstate(invalid="ignore"):  # inf - inf is a NaN without a warning
        for i, row in enumerate(P):
            weights = row if v.ndim == 1 else row[:, None]
            terms = np.where((weights == 0) & np.isinf(v), 0.0, weights * v)
            out[i] = terms.sum(axis=0)
    return out


def _directed(P, valid, descending):
    """The rows of P from the largest down, or with the valid rows reversed: padding stays last."""
    count = int(valid.sum())
    return P if descending else np.concatenate([P[:count][::-1], P[count:]])


def softsort_sort(s, tau, metric=1.0, mask=None, descending=False, values=None):
    """P v with the rows in the chosen direction; v = s, or `values` sorted by the keys s."""
    s, valid = _scores_and_valid(s, mask)
    v = np.array(s if values is None else values, dtype=np.float64)
    v[~valid] = 0.0  # a masked slot may hold anything, and 0 * NaN is NaN
    return apply(_directed(softsort_matrix(s, tau, metric, valid), valid, descending), v)


def softsort_argsort(s, tau, metric=1.0, mask=None, descending=False):
    """P (0, 1, ..., n - 1) with the rows in the chosen direction; 0 past the valid count."""
    s, valid = _scores_and_valid(s, mask)
    P = softsort_matrix(s, tau, metric, valid)
    return apply(_directed(P, valid, descending), np.arange(len(s)))


def softsort_rank(s, tau, metric=1.0, mask=None, descending=False):
    """rank_j = sum_i i P_ij / sum_i P_ij, i = 1..count in the chosen direction; 0 if masked."""
    s, valid = _scores_and_valid(s, mask)
    P = _directed(softsort_matrix(s, tau, metric, valid), valid, descending)
    ranks = np.zeros(len(s))
    for j in range(len(s)):
        column = P[:, j]
        if valid[j] or np.isnan(column).any():
            ranks[j] = (np.arange(1, len(s) + 1) * column).sum() / column.sum()
    return ranks


def softsort_topk(s, k, tau, metric=1.0, mask=None, largest=True):
    """(P s)_1..k from the largest down, or from the smallest up; 0 past the valid count."""
    return softsort_sort(s, tau, metric, mask, descending=largest)[:k]


def softsort_topk_mask(s, k, tau, metric=1.0, mask=None, largest=True):
    """m_j = sum_{i <= k} P_ij over the first k rows from the largest down or the smallest up."""
    s, valid = _scores_and_valid(s, mask)
    return _directed(softsort_matrix(s, tau, metric, valid), valid, largest)[:k].sum(axis=0)


def softsort_quantile(s, q, tau, metric=1.0, mask=None):
    """(1 - t) y_l + t y_{l+1} at l + t = q (count - 1), y the ascending soft sort; q of any shape.

    0 * inf counts as 0 here too; NaN if there is no valid item.
    """
    s, valid = _scores_and_valid(s, mask)
    q, count = np.asarray(q, dtype=np.float64), int(valid.sum())
    if count == 0:
        return np.full(q.shape, np.nan)
    y = softsort_sort(s, tau, metric, valid)
    out = np.zeros(q.shape)
    for index in np.ndindex(*q.shape):
        position = q[index] * (count - 1)
        low, high = int(np.floor(position)), int(np.ceil(position))
        t = position - low
        out[index] = apply([[1 - t, t]], [y[low], y[high]])[0]
    return out


def softsort_entropy(s, tau, metric=1.0, mask=None):
    """H_i = -sum_j P_ij log P_ij, 0 log 0 = 0; zero for padding rows."""
    log_p = softsort_log_matrix(s, tau, metric, mask)
    P = np.exp(log_p)
    return -(P * np.where(P == 0, 0.0, log_p)).sum(axis=1)


def softsort_log_prob(s, permutation, tau, metric=1.0, mask=None):
    """sum_{i <= count} log P[i, permutation_i]."""
    s, valid = _scores_and_valid(s, mask)
    log_p = softsort_log_matrix(s, tau, metric, valid)
    return float(sum(log_p[i, int(permutation[i])] for i in range(int(valid.sum()))))


def knn_weights(query, neighbors, k, tau, metric=1.0):
    """w_j = (1/k) sum_{i <= k} P_ij with scores s_j = -||query - neighbors_j||^2."""
    query, neighbors = np.asarray(query, np.float64), np.asarray(neighbors, np.float64)
    s = -((query - neighbors) ** 2).sum(axis=1)
    return softsort_matrix(s, tau, metric)[:k].mean(axis=0)


def softsort_matrix_gradients(s, G, tau, p=1.0, mask=None):
    """(dL/ds, dL/dtau) of L = sum_ij G_ij P_ij for d = |.|^p.

    With l_ij = -|x_i - s_j|^p / tau, D_ij = dL/dl_ij = P_ij (G_ij - sum_k P_ik G_ik) and
    E_ij = D_ij (p / tau) |x_i - s_j|^(p-1) sign(x_i - s_j), zero at coincident pairs:
    dL/ds_j gains sum_i E_ij, dL/dx_i is -sum_j E_ij, shared equally by all that are tied at
    position i, and dL/dtau = sum_ij D_ij |x_i - s_j|^p / tau^2. For p = 1 there is also what
    `_tied_pairs` has. Only valid finite items take part: within an infinite block P is constant.
    """
    s, valid = _scores_and_valid(s, mask)
    G, tau, p = np.asarray(G, dtype=np.float64), float(tau), float(p)
    if np.isnan(s[valid]).any():
        return np.full(len(s), np.nan), np.nan
    P = softsort_matrix(s, tau, p, valid)
    order = softsort_order(s, valid)
    finite = np.flatnonzero(valid & np.isfinite(s))
    of_items, of_positions, grad_tau = np.zeros(len(s)), np.zeros(len(s)), 0.0
    C = np.zeros(P.shape)  # dL/d d(x_i, s_j)
    for i, item in enumerate(order):
        if not (valid[item] and np.isfinite(s[item])):
            continue
        js = finite[P[i, finite] != 0]
        u = s[item] - s[js]
        D = P[i, js] * (G[i, js] - (P[i, js] * G[i, js]).sum())
        C[i, js] = -D / tau
        js, u, D = js[u != 0], u[u != 0], D[u != 0]
        E = D * (p / tau) * np.abs(u) ** (p - 1) * np.sign(u)
        of_items[js] += E
        of_positions[item] -= E.sum()
        grad_tau += (D * np.abs(u) ** p / tau / tau).sum()
    for value in np.unique(s[finite]):
        places = [i for i, item in enumerate(order) if valid[item] and s[item] == value]
        tied = order[places]
        of_positions[tied] = of_positions[tied].mean()
        if p == 1:
            of_items[tied] += _tied_pairs(C[np.ix_(places, tied)])
    return of_items + of_positions, float(grad_tau)


def _tied_pairs(C):
    """What each of m tied items receives from the pairs among them, for d = |.|.

    C_ij = dL/d d(x_i, s_j) for positions i and items j of the group. Over all orders, a position
    i has a_i = m - 1 - 2i more of the others after it than before it: item k receives
    -sum_i C_ik a_i / m as an item, and sum_i sum_{j != k} C_ij a_i / (m (m - 1)) as a position.
    """
    m = len(C)
    received = np.zeros(m)
    for k in range(m):
        for i in range(m):
            a = m - 1 - 2 * i
            received[k] -= C[i, k] * a / m
            received[k] += sum(C[i, j] * a / (m * (m - 1)) for j in range(m) if j != k)
    return received


def softsort_sort_gradients(s, v, g, tau, p=1.0, mask=None):
    """(dL/ds, dL/dv, dL/dtau) of L = sum_i g_i (P v)_i, v independent of s, rows descending.

    dL/dP = g v^T gives dL/ds and dL/dtau, and dL/dv = P^T g.
    """
    s, valid = _scores_and_valid(s, mask)
    v, g = np.array(v, dtype=np.float64), np.array(g, dtype=np.float64)
    v[~valid] = 0.0  # a masked item and a padding position may hold anything
    g[int(valid.sum()) :] = 0.0
    with np.errstate(invalid="ignore"):
        grad_s, grad_tau = softsort_matrix_gradients(s, np.outer(g, v), tau, p, valid)
    return grad_s, apply(softsort_matrix(s, tau, p, valid).T, g), grad_tau
