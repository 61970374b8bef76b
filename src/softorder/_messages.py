"""The text of errors and warnings: what was expected, what came, how to fix it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def message(expected: str, received: object, fix: str) -> str:
    """Join the three parts of an error."""
    return f"{expected}; got {received}. {fix}"


def type_error(expected: str, received: object, fix: str) -> TypeError:
    """Return a TypeError with a message of three parts."""
    return TypeError(message(expected, received, fix))


def value_error(expected: str, received: object, fix: str) -> ValueError:
    """Return a ValueError with a message of three parts."""
    return ValueError(message(expected, received, fix))


def describe(value: object) -> str:
    """Name a value briefly: type, and shape and dtype if it is an array."""
    shape, kind = getattr(value, "shape", None), type(value).__name__
    if shape is None:
        text = repr(value)
        return f"{kind} {text if len(text) <= 60 else text[:57] + '...'}"
    return f"{kind} of shape {tuple(shape)} and dtype {getattr(value, 'dtype', '?')}"


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


# What other libraries call an argument -> its name here.
_OTHER_NAMES = {
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
    ours = _OTHER_NAMES.get(name)
    fix = "Leave it out."
    if ours in names:
        fix = f"Write {ours}= in place of {name}=."
    elif name == "out":
        fix = "Use the result: softorder never writes to an array."
    expected = f"{operation} has the arguments {', '.join(names)}"
    return message(expected, f"{name}={describe(value)}", fix)


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


def not_differentiable(x: Any, framework: str | None) -> str:
    """Say what `vjp` differentiates; `framework` is that of x, None if it is not an array."""
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
