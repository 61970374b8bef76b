"""Every check of an argument.

Shapes and types are always checked. Values (a tau that is positive, a permutation that is one)
are checked where they can be read: Python numbers, and arrays that are concrete.
"""

from __future__ import annotations

import math
import numbers
import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from softorder._messages import describe, message, type_error, value_error

Choice = TypeVar("Choice")

REAL = (float, numbers.Real)
"""A real number, for isinstance: the first answers for most, and ten times as fast."""

_HARD = "For the hard limit take the exact permutation, SoftSort()(scores).hard() for example."
_NUMBER = "Pass a number such as 0.1, or an array with one for each batch row."
_PERCENT = "For percentiles, divide by 100 first."

# ---------------------------------------------------------------- arrays


def check_floating(xp: Any, x: Any, name: str) -> None:
    if not xp.isdtype(x.dtype, "real floating"):
        raise type_error(
            f"{name} must have a real floating dtype",
            f"dtype {x.dtype}",
            f"Convert first: {name}.to(torch.float32) in torch, {name}.astype(numpy.float32) in "
            f"NumPy, tf.cast({name}, tf.float32) in TensorFlow.",
        )


def _check_dtype(xp: Any, x: Any, kind: str, expected: str, fix: str) -> None:
    if not xp.isdtype(x.dtype, kind):
        raise type_error(expected, f"dtype {x.dtype}", fix)


def check_has_dimension(x: Any, name: str) -> None:
    if x.ndim == 0:
        raise value_error(
            f"{name} must have at least one dimension to order along",
            "a 0-dimensional array",
            f"Give it one, for example {name}.reshape(1).",
        )


def check_dim(dim: int, ndim: int) -> int:
    """Return dim counted from the end (-ndim..-1)."""
    index = dim
    if type(dim) is not int:
        fix = "Pass one dimension, such as dim=-1; to order all of them as one, x.reshape(-1)."
        index = _integer(dim, "dim must be an integer", fix)
    if not -ndim <= index < ndim:
        raise value_error(
            f"dim must lie in [{-ndim}, {ndim - 1}] for an array of {ndim} dimensions",
            index,
            "Pass the dimension to order along; dim=-1 is the last.",
        )
    return index - ndim if index >= 0 else index


def check_broadcasts(shape: Sequence[int], target: Sequence[int], what: str, fix: str) -> None:
    """Check that an array of `shape` expands to `target` under the broadcasting rules."""
    padded = (1,) * (len(target) - len(shape)) + tuple(shape)
    if len(shape) > len(target) or any(
        a != b and a != 1 for a, b in zip(padded, target, strict=True)
    ):
        raise value_error(f"{what} must broadcast to {tuple(target)}", f"shape {tuple(shape)}", fix)


def check_batch(lead: Sequence[int], batch: Sequence[int], what: str) -> None:
    """Check that leading dimensions and a permutation's batch broadcast to each other."""
    shared = min(len(lead), len(batch))
    pairs = zip(lead[len(lead) - shared :], batch[len(batch) - shared :], strict=True)
    if any(a != b and a != 1 and b != 1 for a, b in pairs):
        raise value_error(
            f"{what} must broadcast with the batch shape {tuple(batch)}",
            f"{tuple(lead)}",
            "Batch dimensions come first, feature dimensions after them.",
        )


def check_mask(xp: Any, mask: Any, shape: Sequence[int]) -> None:
    fix = "Compare first, for example mask = lengths > position."
    _check_dtype(xp, mask, "bool", "mask must be boolean (True = takes part)", fix)
    fix = "Give mask one entry for each score, in the scores' own shape."
    check_broadcasts(mask.shape, shape, "the shape of mask", fix)


def check_length(length: int, n: int, what: str) -> None:
    if length != n:
        raise value_error(
            f"{what} must have length {n}, the number of items of this permutation",
            length,
            "Check the dimension: apply(x, dim=...) takes any, @ follows matmul "
            "(a batch of vectors is v[..., None] there).",
        )


def check_keys(keys: int, n: int) -> None:
    if keys != n:
        fix = "Keys lack trailing feature dimensions of x, or have its shape."
        raise value_error(f"by must have one key for each of the {n} values along dim", keys, fix)


def check_item_counts(n: int, other: int) -> None:
    if n != other:
        fix = "Check the scores and dim= of both."
        raise value_error(f"other must order the same number of items, {n}", other, fix)


def check_permutation(
    xp: Any, permutation: Any, n: int, batch: Sequence[int], concrete: bool
) -> None:
    fix = "such as P.order or keys.argsort(descending=True)"
    expected = "a permutation holds integer indices"
    _check_dtype(xp, permutation, "integral", expected, f"Pass indices {fix}, not one-hot rows.")
    check_length(permutation.shape[-1], n, "a permutation")
    check_batch(permutation.shape[:-1], batch, "the batch dimensions of a permutation")
    every = xp.arange(n, dtype=permutation.dtype, device=getattr(permutation, "device", None))
    if concrete and not bool(xp.all(xp.sort(permutation, axis=-1) == every)):
        expected = f"a permutation holds each of 0..{n - 1} once"
        raise value_error(expected, permutation, f"Pass indices counted from 0, {fix}.")


def check_row_numbers(rows: Any) -> list[int] | int:
    """Return an int, or a sequence of ints as a list."""
    single = isinstance(rows, numbers.Integral)
    try:
        found = [rows] if single else list(rows)
        if any(isinstance(i, bool) or abs(operator.index(i)) >= 2**63 for i in found):
            raise TypeError
    except TypeError:
        expected = "rows must be an int, a slice, a list of ints or an integer array"
        raise type_error(expected, describe(rows), "Pass positions, counted from 0.") from None
    found = [operator.index(i) for i in found]
    return found[0] if single else found


def check_rows(xp: Any, rows: Any, n: int, concrete: bool) -> None:
    _check_dtype(xp, rows, "integral", "rows must be integers", "Pass positions, from 0.")
    if not concrete or 0 in rows.shape:
        return
    least, most = int(xp.min(rows)), int(xp.max(rows))
    if least < -n or most >= n:
        fix = "Positions are counted from 0, the largest score first."
        received = f"rows from {least} to {most}"
        raise IndexError(message(f"rows must lie in [{-n}, {n - 1}]", received, fix))


def _check_shape(value: Any, shape: Sequence[int], what: str, fix: str) -> None:
    if getattr(value, "shape", None) is None or tuple(value.shape) != tuple(shape):
        raise value_error(f"{what} {tuple(shape)}", describe(value), fix)


def check_distance(distance: Any, shape: Sequence[int]) -> None:
    what = "a metric d(a, b) must work element by element and return the shape"
    _check_shape(distance, shape, what, "Return for example (a - b).abs() ** 1.5; reduce nothing.")


def check_logits(logits: Any, shape: Sequence[int]) -> None:
    fix = (
        "Rows are the positions asked for, columns the items: scores.at(rows)[..., :, None] and "
        "scores.items[..., None, :]."
    )
    _check_shape(logits, shape, "the logits of a relaxation must have the shape", fix)


def check_square(shape: Sequence[int]) -> None:
    if len(shape) < 2 or shape[-1] != shape[-2]:
        fix = "Positions are its rows, items its columns; as many of each."
        raise value_error("matrix must have the shape (..., n, n)", f"shape {tuple(shape)}", fix)


def check_not_certain(xp: Any, matrix: Any) -> None:
    if bool(xp.any(matrix == math.inf)):
        fix = "To force a pair, forbid all others of its row and column with -inf."
        raise value_error("a matrix of weights must not hold +inf", "an entry of +inf", fix)


def check_points(xp: Any, query: Any, neighbors: Any) -> None:
    for name, points in (("query", query), ("neighbors", neighbors)):
        check_floating(xp, points, name)
        if points.ndim < 2:
            raise value_error(
                f"{name} must have shape (..., number of points, features)",
                f"shape {tuple(points.shape)}",
                f"For a single point pass {name}[None, :].",
            )
    check_batch(neighbors.shape[:-2], query.shape[:-2], "the batch dimensions of neighbors")
    if query.shape[-1] != neighbors.shape[-1]:
        raise value_error(
            "query and neighbors must have the same number of features",
            f"{query.shape[-1]} and {neighbors.shape[-1]}",
            "Embed both with the same network.",
        )


def check_labels(xp: Any, labels: Any, weights: Sequence[int]) -> None:
    """Check labels for weights of the shape (..., q, m)."""
    one_hot = "of one-hot rows, labels.argmax(-1)."
    _check_dtype(
        xp, labels, "integral", "labels must be integers", f"Pass class indices; {one_hot}"
    )
    fix = f"Pass labels of shape (..., m) for neighbors of shape (..., m, d); {one_hot}"
    *batch, _, m = weights
    if labels.ndim == 0 or labels.shape[-1] != m:
        expected = f"labels must have one entry for each of the {m} neighbors"
        raise value_error(expected, f"shape {tuple(labels.shape)}", fix)
    check_broadcasts(labels.shape, (*batch, m), "the shape of labels", fix)


def count_classes(xp: Any, labels: Any, num_classes: Any, concrete: bool) -> int:
    """Return the number of classes; labels are compared with it where they can be read."""
    concrete = concrete and 0 not in labels.shape
    if num_classes is None and not concrete:
        expected = "num_classes is needed where labels cannot be read (compiled, other device)"
        raise value_error(expected, None, "Pass num_classes=.")
    least, most = (int(xp.min(labels)), int(xp.max(labels))) if concrete else (0, -1)
    if least < 0:
        raise value_error("labels must not be negative", least, "Use mask= to leave out.")
    if num_classes is None:
        return most + 1
    classes = check_count(num_classes, 2**31, "num_classes")
    if most >= classes:
        fix = "Count classes from 0, or raise num_classes."
        raise value_error(f"labels must be below num_classes = {classes}", most, fix)
    return classes


def check_cotangent(g: Any, is_array: bool, shape: Sequence[int]) -> None:
    """Check what is pulled back: an array of the shape of the result, or a number."""
    fix = "Pass the gradient of a loss by the result, such as numpy.ones(y.shape)."
    if not is_array and not isinstance(g, REAL):
        raise type_error("g must be a NumPy array or a number", describe(g), fix)
    if tuple(getattr(g, "shape", ())) != tuple(shape):
        raise value_error(f"g must have the shape of the result, {tuple(shape)}", describe(g), fix)


# ---------------------------------------------------------------- numbers and names


def _integer(value: Any, expected: str, fix: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise type_error(expected, describe(value), fix) from None


def check_count(k: Any, n: int, name: str = "k", least: int = 1) -> int:
    count = _integer(k, f"{name} must be an integer", "Pass how many items to select.")
    if not least <= count <= n:
        fix = f"There are only {n} to choose from." if count > n else f"Ask for at least {least}."
        raise value_error(f"{name} must lie in [{least}, {n}]", count, fix)
    return count


def check_not_dim(how: int, operation: str, *, warn: bool) -> None:
    """Refuse or doubt an integer at the place of `how`, which is that of `dim` in torch."""
    meant = f"softorder.{operation} has the temperature tau where torch.{operation} has dim"
    if how <= 0:
        fix = f"For the dimension write dim={how}. {_HARD}"
        raise value_error(f"{meant}: tau must be positive", how, fix)
    if warn:
        received = f"{how}, which is taken for tau = {how}, along the last dimension "
        received += "if dim= is not given"
        fix = f"For the dimension write dim={how}, for the temperature {how}.0 or how={how}."
        warnings.warn(message(meant, received, fix), stacklevel=3)


def check_positive_number(
    value: Any, name: str, fix: str | None = None, smallest: float = 0.0
) -> float:
    """Return a positive, finite number.

    Args:
        value: What was given.
        name: What it is called.
        fix: The third part of the message; what is said of a temperature if None.
        smallest: The least normal number of the scores' dtype.
    """
    if isinstance(value, bool) or not isinstance(value, REAL):
        raise type_error(f"{name} must be a positive number", describe(value), fix or _NUMBER)
    try:
        number = float(value)
    except OverflowError:
        # Too large for a float: described, for its digits may be many.
        number, value = math.inf, describe(value)
    if not 0 < number < math.inf:
        raise value_error(f"{name} must be positive and finite", value, fix or _HARD)
    if number < smallest:
        raise value_error(f"{name} must be at least {smallest:.3g} here", value, fix or _HARD)
    return number


def check_choice(value: str, choices: Mapping[str, Choice], name: str, fix: str) -> Choice:
    """Return what a name stands for."""
    if value not in choices:
        names = ", ".join(map(repr, choices))
        raise value_error(f"{name}= must be one of {names}", repr(value), fix)
    return choices[value]


def check_temperature_shape(shape: Sequence[int], batch: Sequence[int], name: str = "tau") -> None:
    fix = f"The batch shape is the scores' shape without dim; reshape {name}, or pass a number."
    check_broadcasts(shape, batch, f"a tensor {name} has one value per batch row: its shape", fix)


def check_temperature_values(xp: Any, tau: Any, smallest: float, name: str = "tau") -> None:
    """Check temperatures that are in the scores' dtype, whose least normal number is `smallest`."""
    if not bool(xp.all((tau > 0) & xp.isfinite(tau))):
        raise value_error(f"every {name} must be positive and finite", tau, _HARD)
    if not bool(xp.all(tau >= smallest)):
        raise value_error(f"every {name} must be at least {smallest:.3g} here", tau, _HARD)


def check_numbers(q: Any) -> None:
    """Check that q is a number, or a sequence of numbers (of sequences, ...)."""
    if isinstance(q, REAL):
        # An int may be too large for a float.
        if q < 0 or not q <= 1:
            raise value_error("every q must lie in [0, 1]", q, _PERCENT)
        return
    if isinstance(q, str) or not isinstance(q, Sequence):
        expected = "q must be a number in [0, 1] or several of them"
        raise type_error(expected, describe(q), "Pass for example 0.5 or [0.25, 0.75].")
    for each in q:
        check_numbers(each)


def check_probabilities(xp: Any, q: Any, concrete: bool) -> None:
    check_floating(xp, q, "q")
    if q.ndim > 1:
        fix = "Flatten q; the results of several q come first in the output."
        received = f"shape {tuple(q.shape)}"
        raise value_error("q must be a number or a 1-dimensional array", received, fix)
    if concrete and not bool(xp.all((q >= 0) & (q <= 1))):
        raise value_error("every q must lie in [0, 1]", q, _PERCENT)


def check_targets(targets: Any) -> None:
    """Check that targets are None, a number of them, or quantiles in [0, 1]."""
    fix = "Pass how many, such as 20, or quantiles such as [0.25, 0.75]."
    if targets is None:
        return
    if isinstance(targets, int) and not isinstance(targets, bool):
        if targets < 1:
            raise value_error("the number of targets must be at least 1", targets, fix)
        return
    if isinstance(targets, str) or not isinstance(targets, Sequence):
        expected = "targets must be an integer or a sequence of quantiles"
        raise type_error(expected, describe(targets), fix)
    if not targets or not all(isinstance(q, REAL) and 0 <= float(q) <= 1 for q in targets):
        raise value_error("targets must be quantiles in [0, 1]", targets, fix)


def check_iterations(iterations: Any) -> None:
    fix = "Pass how many to do, such as 20; tolerance= lets the error decide."
    if isinstance(iterations, bool) or not isinstance(iterations, numbers.Integral):
        raise type_error("iterations must be an integer", describe(iterations), fix)
    if int(iterations) < 1:
        raise value_error("iterations must be at least 1", iterations, fix)


def check_tolerance(tolerance: Any) -> None:
    """Check an error to reach; None, for a fixed number of iterations, is one too."""
    if tolerance is not None:
        fix = "Pass for example 1e-4, or None for a fixed number of iterations."
        check_positive_number(tolerance, "tolerance", fix)


# ---------------------------------------------------------------- random draws


def check_generator(generator: Any, kind: type, example: str) -> None:
    """Check a source of random numbers: None, or of the framework's own kind."""
    if generator is not None and not isinstance(generator, kind):
        expected = f"generator must be None or of the kind of {example} for these scores"
        fix = f"Pass for example generator={example}."
        raise type_error(expected, describe(generator), fix)


def check_key(key: Any, is_array: bool) -> None:
    """Check a key of JAX: it has no other source of random numbers."""
    if not is_array:
        expected = "key must be a key of jax.random for these scores"
        raise type_error(expected, describe(key), "Pass for example key=jax.random.key(0).")


def random_source(name: str, generator: Any, key: Any) -> Any:
    """Return the one of the two sources of random numbers that a framework calls by this name."""
    sources = {"generator": generator, "key": key}
    source = sources.pop(name)
    ((other, value),) = sources.items()
    if value is not None:
        expected = f"the source of random numbers for these scores is {name}="
        fix = "key= is for JAX, generator= for the others."
        raise type_error(expected, f"{other}={describe(value)}", fix)
    return source


def check_sample_shape(shape: Any) -> tuple[int, ...]:
    """Return the shape of a batch of draws as a tuple."""
    try:
        sizes = tuple(operator.index(size) for size in shape)
    except TypeError:
        expected = "the shape of a sample must be a sequence of integers"
        fix = "Pass for example (1000,); () is a single draw."
        raise type_error(expected, describe(shape), fix) from None
    if any(size < 0 for size in sizes):
        raise value_error("the shape of a sample must not be negative", sizes, "Pass 0 or more.")
    return sizes


def check_sample_count(samples: Any) -> int:
    fix = "Pass for example 1000."
    count = _integer(samples, "samples must be an integer", fix)
    if count < 1:
        raise value_error("samples must be at least 1", count, fix)
    return count


def check_comparable(other: Any, kind: type) -> None:
    """Check the other side of a divergence."""
    if not isinstance(other, kind):
        fix = f"Wrap its log-weights: {kind.__name__}(scores)."
        raise type_error(f"other must be a {kind.__name__}", describe(other), fix)
