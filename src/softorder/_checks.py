"""Every argument check and every message: what was expected, what came, how to fix it.

Shapes and types are always checked. Values (a tau that is positive, a permutation that is one)
are checked where they can be looked at: Python numbers, and arrays that are concrete.
"""

from __future__ import annotations

import math
import numbers
import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

Choice = TypeVar("Choice")


def message(expected: str, received: object, fix: str) -> str:
    """Join the three parts of an error."""
    return f"{expected}; got {received}. {fix}"


def describe(value: object) -> str:
    """Name a value briefly: type, and shape and dtype if it is an array."""
    shape = getattr(value, "shape", None)
    if shape is None:
        text = repr(value)
        return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
    return (
        f"{type(value).__name__} of shape {tuple(shape)} and dtype {getattr(value, 'dtype', '?')}"
    )


def not_an_array(name: str, value: object, frameworks: Sequence[str]) -> str:
    fix = "Convert it first, for example with torch.tensor(...) or numpy.asarray(...)"
    kind = f"{type(value).__module__}.{type(value).__name__}"
    if "Masked" in kind:
        fix += "; what it masks goes into mask=."
    elif "sparse" in kind.lower():
        fix = "Make it dense first, for example with toarray() or todense()."
    elif isinstance(value, (list, tuple)) and any(hasattr(each, "shape") for each in value):
        fix = "Join its arrays first, for example with torch.stack(...) or numpy.stack(...)."
    else:
        fix += "."
    return message(f"{name} must be an array of {' or '.join(frameworks)}", describe(value), fix)


def not_dense(name: str, value: Any) -> str:
    if getattr(value, "is_nested", False):
        got, fix = "a nested tensor", f"Pad it with {name}.to_padded_tensor(0.0), and give mask=."
    else:
        got = f"{describe(value)} and layout {getattr(value, 'layout', '?')}"
        fix = f"Make it dense first: {name}.to_dense()."
    return message(f"{name} must be a dense array", got, fix)


_ELSEWHERE = {
    "tau": "how",
    "temperature": "how",
    "epsilon": "how",
    "regularization_strength": "how",
    "axis": "dim",
    "keepdims": "keepdim",
    "method": "interpolation",
}


def unknown_argument(operation: str, name: str, value: object, names: Sequence[str]) -> str:
    """Say which arguments an operation has, and what another library's argument is called here."""
    ours = _ELSEWHERE.get(name)
    fix = "Leave it out."
    if ours in names:
        fix = f"Write {ours}= in place of {name}=."
    elif name == "out":
        fix = "Use the result: an array is never written to."
    return message(
        f"{operation} has the arguments {', '.join(names)}", f"{name}={describe(value)}", fix
    )


def check_not_dim(how: int, operation: str, *, warn: bool) -> None:
    """Refuse or doubt an integer at the place of `how`, which is that of `dim` in torch."""
    meant = f"softorder.{operation} has the temperature tau where torch.{operation} has dim"
    if how <= 0:
        raise ValueError(
            message(
                f"{meant}: tau must be positive",
                how,
                f"For the dimension write dim={how}. {_HARD}",
            )
        )
    if not warn:
        return
    warnings.warn(
        message(
            meant,
            f"{how}, which is taken for tau = {how}, along the last dimension if dim= is not given",
            f"For the dimension write dim={how}, for the temperature {how}.0 or how={how}.",
        ),
        stacklevel=3,
    )


def mixed_frameworks(first: str, first_framework: str, second: str, second_framework: str) -> str:
    return message(
        "all arrays of one call must belong to one framework",
        f"{first} of {first_framework} and {second} of {second_framework}",
        "Convert one of them to the other's framework.",
    )


def unknown_shape(name: str, shape: object) -> str:
    return message(
        f"the shape of {name} must be known when a graph is traced",
        f"shape {shape}",
        "Give tf.function an input_signature with numbers in place of None, call "
        f"{name}.set_shape(...), or map over the batch with tf.vectorized_map, as the layers of "
        "softorder.tensorflow do.",
    )


def needs_values(what: str) -> str:
    return message(
        f"{what} looks at values while it computes",
        "values that cannot be looked at (inside tf.function)",
        "Call it eagerly, or use SoftSort or NeuralSort.",
    )


def check_floating(xp: Any, x: Any, name: str) -> None:
    if not xp.isdtype(x.dtype, "real floating"):
        raise TypeError(
            message(
                f"{name} must have a real floating dtype",
                f"dtype {x.dtype}",
                f"Convert first: {name}.to(torch.float32) in torch, "
                f"{name}.astype(numpy.float32) in NumPy, tf.cast({name}, tf.float32) in "
                "TensorFlow.",
            )
        )


def check_has_dimension(x: Any, name: str) -> None:
    if x.ndim == 0:
        raise ValueError(
            message(
                f"{name} must have at least one dimension to order along",
                "a 0-dimensional array",
                f"Give it one, for example {name}.reshape(1).",
            )
        )


def check_dim(dim: int, ndim: int) -> int:
    """Return dim counted from the end (-ndim..-1)."""
    try:
        index = operator.index(dim)
    except TypeError:
        raise TypeError(
            message(
                "dim must be an integer",
                describe(dim),
                "Pass one dimension, such as dim=-1; to order all of them as one, x.reshape(-1).",
            )
        ) from None
    if not -ndim <= index < ndim:
        raise ValueError(
            message(
                f"dim must lie in [{-ndim}, {ndim - 1}] for an array of {ndim} dimensions",
                index,
                "Pass the dimension to order along; dim=-1 is the last.",
            )
        )
    return index - ndim if index >= 0 else index


def check_broadcasts(shape: Sequence[int], target: Sequence[int], what: str, fix: str) -> None:
    """Check that an array of `shape` expands to `target` under the broadcasting rules."""
    padded = (1,) * (len(target) - len(shape)) + tuple(shape)
    if len(shape) > len(target) or any(
        a != b and a != 1 for a, b in zip(padded, target, strict=True)
    ):
        raise ValueError(
            message(f"{what} must broadcast to {tuple(target)}", f"shape {tuple(shape)}", fix)
        )


def check_batch(lead: Sequence[int], batch: Sequence[int], what: str) -> None:
    """Check that leading dimensions and a permutation's batch broadcast to each other."""
    shared = min(len(lead), len(batch))
    pairs = zip(lead[len(lead) - shared :], batch[len(batch) - shared :], strict=True)
    if any(a != b and a != 1 and b != 1 for a, b in pairs):
        raise ValueError(
            message(
                f"{what} must broadcast with the batch shape {tuple(batch)}",
                f"{tuple(lead)}",
                "Batch dimensions come first, feature dimensions after them.",
            )
        )


def check_mask(xp: Any, mask: Any, shape: Sequence[int]) -> None:
    if not xp.isdtype(mask.dtype, "bool"):
        raise TypeError(
            message(
                "mask must be boolean (True = takes part)",
                f"dtype {mask.dtype}",
                "Compare first, for example mask = lengths > position.",
            )
        )
    check_broadcasts(
        mask.shape,
        shape,
        "the shape of mask",
        "Give mask one entry for each score, in the scores' own shape.",
    )


_HARD = "For the hard limit take the exact permutation, SoftSort()(scores).hard() for example."
_NUMBER = "Pass a number such as 0.1, or an array with one for each batch row."


REAL = (float, numbers.Real)
"""A real number, for isinstance: the first answers for most, and ten times as fast."""


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
        raise TypeError(
            message(f"{name} must be a positive number", describe(value), fix or _NUMBER)
        )
    fix = fix or _HARD
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(
            message(f"{name} must be positive and finite", describe(value), fix)
        ) from None
    if not 0 < number < math.inf:
        raise ValueError(message(f"{name} must be positive and finite", value, fix))
    if number < smallest:
        raise ValueError(message(f"{name} must be at least {smallest:.3g} here", value, fix))
    return number


def check_choice(value: str, choices: Mapping[str, Choice], name: str, fix: str) -> Choice:
    """Return what a name stands for."""
    if value not in choices:
        raise ValueError(
            message(
                f"{name}= must be one of {', '.join(map(repr, choices))}",
                repr(value),
                fix,
            )
        )
    return choices[value]


def check_temperature_shape(shape: Sequence[int], batch: Sequence[int], name: str = "tau") -> None:
    check_broadcasts(
        shape,
        batch,
        f"a tensor {name} has one value per batch row: its shape",
        f"The batch shape is the scores' shape without dim; reshape {name}, or pass a number.",
    )


def check_temperatures(xp: Any, tau: Any, smallest: float, name: str = "tau") -> None:
    """Check temperatures that are in the scores' dtype, whose least normal number is `smallest`."""
    if not bool(xp.all((tau > 0) & xp.isfinite(tau))):
        raise ValueError(message(f"every {name} must be positive and finite", tau, _HARD))
    if not bool(xp.all(tau >= smallest)):
        raise ValueError(message(f"every {name} must be at least {smallest:.3g} here", tau, _HARD))


def check_count(k: Any, n: int, name: str = "k", least: int = 1) -> int:
    try:
        count = operator.index(k)
    except TypeError:
        raise TypeError(
            message(f"{name} must be an integer", describe(k), "Pass how many items to select.")
        ) from None
    if not least <= count <= n:
        few = f"Ask for at least {least}."
        raise ValueError(
            message(
                f"{name} must lie in [{least}, {n}]",
                count,
                f"There are only {n} to choose from." if count > n else few,
            )
        )
    return count


def check_numbers(q: Any) -> None:
    """Check that q is a number, or a sequence of numbers (of sequences, ...)."""
    if isinstance(q, REAL):
        # An int may be too large for a float.
        if q < 0 or not q <= 1:
            raise ValueError(
                message("every q must lie in [0, 1]", q, "For percentiles, divide by 100 first.")
            )
        return
    if isinstance(q, str) or not isinstance(q, Sequence):
        raise TypeError(
            message(
                "q must be a number in [0, 1] or several of them",
                describe(q),
                "Pass for example 0.5 or [0.25, 0.75].",
            )
        )
    for each in q:
        check_numbers(each)


def check_probabilities(xp: Any, q: Any, concrete: bool) -> None:
    check_floating(xp, q, "q")
    if q.ndim > 1:
        raise ValueError(
            message(
                "q must be a number or a 1-dimensional array",
                f"shape {tuple(q.shape)}",
                "Flatten q; the results of several q come first in the output.",
            )
        )
    if concrete and not bool(xp.all((q >= 0) & (q <= 1))):
        raise ValueError(
            message("every q must lie in [0, 1]", q, "For percentiles, divide by 100 first.")
        )


def check_length(length: int, n: int, what: str) -> None:
    if length != n:
        raise ValueError(
            message(
                f"{what} must have length {n}, the number of items of this permutation",
                length,
                "Check the dimension: apply(x, dim=...) takes any, @ follows matmul "
                "(a batch of vectors is v[..., None] there).",
            )
        )


def check_keys(keys: int, n: int) -> None:
    if keys != n:
        raise ValueError(
            message(
                f"by must have one key for each of the {n} values along dim",
                keys,
                "Keys lack trailing feature dimensions of x, or have its shape.",
            )
        )


def check_permutation(
    xp: Any, permutation: Any, n: int, batch: Sequence[int], concrete: bool
) -> None:
    if not xp.isdtype(permutation.dtype, "integral"):
        raise TypeError(
            message(
                "a permutation holds integer indices",
                f"dtype {permutation.dtype}",
                "Pass indices such as P.order or keys.argsort(descending=True), not one-hot rows.",
            )
        )
    check_length(permutation.shape[-1], n, "a permutation")
    check_batch(permutation.shape[:-1], batch, "the batch dimensions of a permutation")
    expected = xp.arange(n, dtype=permutation.dtype, device=getattr(permutation, "device", None))
    if concrete and not bool(xp.all(xp.sort(permutation, axis=-1) == expected)):
        raise ValueError(
            message(
                f"a permutation holds each of 0..{n - 1} once",
                permutation,
                "Pass indices counted from 0, such as P.order or keys.argsort(descending=True).",
            )
        )


def check_row_numbers(rows: Any) -> list[int] | int:
    """Return an int, or a sequence of ints as a list."""
    single = isinstance(rows, numbers.Integral)
    try:
        numbers_ = [rows] if single else list(rows)
        if any(isinstance(i, bool) for i in numbers_):
            raise TypeError
        numbers_ = [operator.index(i) for i in numbers_]
        if any(abs(i) >= 2**63 for i in numbers_):
            raise TypeError
    except TypeError:
        raise TypeError(
            message(
                "rows must be an int, a slice, a list of ints or an integer array",
                describe(rows),
                "Pass positions, counted from 0.",
            )
        ) from None
    return numbers_[0] if single else numbers_


def check_rows(xp: Any, rows: Any, n: int, concrete: bool) -> None:
    if not xp.isdtype(rows.dtype, "integral"):
        raise TypeError(
            message("rows must be integers", f"dtype {rows.dtype}", "Pass positions, from 0.")
        )
    if concrete and 0 not in rows.shape and not (-n <= int(xp.min(rows)) and int(xp.max(rows)) < n):
        raise IndexError(
            message(
                f"rows must lie in [{-n}, {n - 1}]",
                f"rows from {int(xp.min(rows))} to {int(xp.max(rows))}",
                "Positions are counted from 0, the largest score first.",
            )
        )


def _check_shape(value: Any, shape: Sequence[int], what: str, fix: str) -> None:
    if getattr(value, "shape", None) is None or tuple(value.shape) != tuple(shape):
        raise ValueError(message(f"{what} {tuple(shape)}", describe(value), fix))


def check_distance(distance: Any, shape: Sequence[int]) -> None:
    _check_shape(
        distance,
        shape,
        "a metric d(a, b) must work element by element and return the shape",
        "Return for example (a - b).abs() ** 1.5; reduce nothing.",
    )


def check_logits(logits: Any, shape: Sequence[int]) -> None:
    _check_shape(
        logits,
        shape,
        "the logits of a relaxation must have the shape",
        "Rows are the positions asked for, columns the items: scores.at(rows)[..., :, None] and "
        "scores.items[..., None, :].",
    )


def check_points(xp: Any, query: Any, neighbors: Any) -> None:
    for name, points in (("query", query), ("neighbors", neighbors)):
        check_floating(xp, points, name)
        if points.ndim < 2:
            raise ValueError(
                message(
                    f"{name} must have shape (..., number of points, features)",
                    f"shape {tuple(points.shape)}",
                    f"For a single point pass {name}[None, :].",
                )
            )
    check_batch(neighbors.shape[:-2], query.shape[:-2], "the batch dimensions of neighbors")
    if query.shape[-1] != neighbors.shape[-1]:
        raise ValueError(
            message(
                "query and neighbors must have the same number of features",
                f"{query.shape[-1]} and {neighbors.shape[-1]}",
                "Embed both with the same network.",
            )
        )


def check_targets(targets: Any) -> None:
    """Check that targets are None, a number of them, or quantiles in [0, 1]."""
    fix = "Pass how many, such as 20, or quantiles such as [0.25, 0.75]."
    if targets is None:
        return
    if isinstance(targets, int) and not isinstance(targets, bool):
        if targets < 1:
            raise ValueError(message("the number of targets must be at least 1", targets, fix))
        return
    if isinstance(targets, str) or not isinstance(targets, Sequence):
        raise TypeError(
            message("targets must be an integer or a sequence of quantiles", describe(targets), fix)
        )
    if not targets or not all(isinstance(q, REAL) and 0 <= float(q) <= 1 for q in targets):
        raise ValueError(message("targets must be quantiles in [0, 1]", targets, fix))


def check_iterations(iterations: Any) -> None:
    fix = "Pass how many to do, such as 20; tolerance= lets the error decide."
    if isinstance(iterations, bool) or not isinstance(iterations, numbers.Integral):
        raise TypeError(message("iterations must be an integer", describe(iterations), fix))
    if int(iterations) < 1:
        raise ValueError(message("iterations must be at least 1", iterations, fix))


def check_not_certain(xp: Any, matrix: Any) -> None:
    if bool(xp.any(matrix == math.inf)):
        raise ValueError(
            message(
                "a matrix of weights must not hold +inf",
                "an entry of +inf",
                "To force a pair, forbid all others of its row and column with -inf.",
            )
        )


def check_square(shape: Sequence[int]) -> None:
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(
            message(
                "matrix must have the shape (..., n, n)",
                f"shape {tuple(shape)}",
                "Positions are its rows, items its columns; as many of each.",
            )
        )


def check_labels(xp: Any, labels: Any, weights: Sequence[int]) -> None:
    """Check labels for weights of the shape (..., q, m)."""
    fix = "Pass labels of shape (..., m) for neighbors of shape (..., m, d)"
    fix += "; of one-hot rows, labels.argmax(-1)."
    if not xp.isdtype(labels.dtype, "integral"):
        raise TypeError(
            message(
                "labels must be integers",
                f"dtype {labels.dtype}",
                "Pass class indices; of one-hot rows, labels.argmax(-1).",
            )
        )
    *batch, _, m = weights
    if labels.ndim == 0 or labels.shape[-1] != m:
        raise ValueError(
            message(
                f"labels must have one entry for each of the {m} neighbors",
                f"shape {tuple(labels.shape)}",
                fix,
            )
        )
    check_broadcasts(labels.shape, (*batch, m), "the shape of labels", fix)


def count_classes(xp: Any, labels: Any, num_classes: Any, concrete: bool) -> int:
    """Return the number of classes; labels are compared with it where they can be looked at."""
    concrete = concrete and 0 not in labels.shape
    if num_classes is None and not concrete:
        raise ValueError(
            message(
                "num_classes is needed where labels cannot be looked at (compiled, other device)",
                None,
                "Pass num_classes=.",
            )
        )
    if concrete and int(xp.min(labels)) < 0:
        raise ValueError(
            message("labels must not be negative", int(xp.min(labels)), "Use mask= to leave out.")
        )
    if num_classes is None:
        return int(xp.max(labels)) + 1
    classes = check_count(num_classes, 2**31, "num_classes")
    if concrete and int(xp.max(labels)) >= classes:
        raise ValueError(
            message(
                f"labels must be below num_classes = {classes}",
                int(xp.max(labels)),
                "Count classes from 0, or raise num_classes.",
            )
        )
    return classes


def check_generator(generator: Any, kind: type, example: str) -> None:
    """Check a source of random numbers: None, or of the framework's own kind."""
    if generator is not None and not isinstance(generator, kind):
        raise TypeError(
            message(
                f"generator must be None or of the kind of {example} for these scores",
                describe(generator),
                f"Pass for example generator={example}.",
            )
        )


def check_key(key: Any, is_array: bool) -> None:
    """Check a key of JAX: it has no other source of random numbers."""
    if not is_array:
        raise TypeError(
            message(
                "key must be a key of jax.random for these scores",
                describe(key),
                "Pass for example key=jax.random.key(0).",
            )
        )


def random_source(name: str, generator: Any, key: Any) -> Any:
    """Return the one of the two sources of random numbers that a framework calls by this name."""
    sources = {"generator": generator, "key": key}
    source = sources.pop(name)
    for other, given in sources.items():
        if given is not None:
            raise TypeError(
                message(
                    f"the source of random numbers for these scores is {name}=",
                    f"{other}={describe(given)}",
                    "key= is for JAX, generator= for the others.",
                )
            )
    return source


def not_differentiable(x: Any, framework: str | None) -> str:
    """Say what `vjp` differentiates; `framework` is that of x, None if it is no array."""
    fix = "Convert it first: numpy.asarray(x, dtype=float)."
    if framework not in (None, "numpy"):
        fix = f"Use the autograd of {framework} itself: softorder's operations take its arrays."
    return message(
        "vjp differentiates by a NumPy array of a floating dtype", f"x = {describe(x)}", fix
    )


def second_derivative(function: Any) -> str:
    return message(
        "vjp gives first derivatives",
        f"a vjp inside {getattr(function, '__name__', function)}, which a vjp is differentiating",
        "Call it outside; for second derivatives use torch or JAX.",
    )


def not_one_array(result: Any) -> str:
    return message(
        "a function that is differentiated must return one NumPy array",
        describe(result),
        "Return for example so.sort(x), P @ v or numpy.sum(...); of several arrays make one with "
        "numpy.concatenate or numpy.stack, or call vjp for each.",
    )


def not_followed(what: str, keywords: Mapping[str, Any], rules: Mapping[Any, Any]) -> str:
    """Say that `vjp` cannot follow a function, and which ones it can."""
    names = sorted(name for f in rules if not (name := f.__name__).startswith("_"))
    return message(
        "vjp follows softorder's operations, arithmetic, indexing and some functions of NumPy",
        what + "".join(f", {name}=" for name in keywords),
        f"Write it with operators (never in place) and with these: {', '.join(names)}.",
    )


def check_cotangent(g: Any, is_array: bool, shape: Sequence[int]) -> None:
    """Check what is pulled back: an array of the shape of the result, or a number."""
    fix = "Pass the gradient of a loss by the result, such as numpy.ones(y.shape)."
    if not is_array and not isinstance(g, REAL):
        raise TypeError(message("g must be a NumPy array or a number", describe(g), fix))
    if tuple(getattr(g, "shape", ())) != tuple(shape):
        raise ValueError(
            message(f"g must have the shape of the result, {tuple(shape)}", describe(g), fix)
        )


def check_sample_shape(shape: Any) -> tuple[int, ...]:
    """Return the shape of a batch of draws as a tuple."""
    try:
        sizes = tuple(operator.index(size) for size in shape)
    except TypeError:
        raise TypeError(
            message(
                "the shape of a sample must be a sequence of integers",
                describe(shape),
                "Pass for example (1000,); () is a single draw.",
            )
        ) from None
    if any(size < 0 for size in sizes):
        raise ValueError(
            message("the shape of a sample must not be negative", sizes, "Pass 0 or more.")
        )
    return sizes


def check_sample_count(samples: Any) -> int:
    try:
        count = operator.index(samples)
    except TypeError:
        raise TypeError(
            message("samples must be an integer", describe(samples), "Pass for example 1000.")
        ) from None
    if count < 1:
        raise ValueError(message("samples must be at least 1", count, "Pass for example 1000."))
    return count


def check_comparable(other: Any, kind: type) -> None:
    """Check the other side of a divergence."""
    if not isinstance(other, kind):
        raise TypeError(
            message(
                f"other must be a {kind.__name__}",
                describe(other),
                f"Wrap its log-weights: {kind.__name__}(scores).",
            )
        )


def check_item_counts(n: int, other: int) -> None:
    if n != other:
        raise ValueError(
            message(
                f"other must order the same number of items, {n}",
                other,
                "Check the scores and dim= of both.",
            )
        )
