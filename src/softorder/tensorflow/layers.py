"""The operations as Keras layers: optionally learnable, saved with a model. No mathematics."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras  # pyright: ignore[reportMissingImports]
import tensorflow as tf

import softorder
from softorder import _checks, _messages, relaxations

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        _messages.message(
            "the layers of softorder.tensorflow need Keras with the backend tensorflow",
            keras.backend.backend(),
            'Set the environment variable KERAS_BACKEND="tensorflow" before Keras is imported.',
        )
    )


class _Operation(keras.layers.Layer):
    """An operation with its arguments fixed: what every layer below shares.

    A number for `how`, or a `softorder.SoftSort`, may have a temperature that learns. It is kept as
    `log_tau`, so that it stays positive whatever the optimiser does.
    """

    def __init__(
        self, how: Any, learnable_tau: bool, arguments: dict[str, Any], **layer: Any
    ) -> None:
        super().__init__(**layer)
        self.how = softorder.as_relaxation(_from_config(how))
        self.learnable_tau = learnable_tau
        self.arguments = arguments
        self.log_tau = None
        if not learnable_tau:
            return
        tau = getattr(self.how, "tau", None)
        if not isinstance(self.how, softorder.SoftSort) or not isinstance(tau, _checks.REAL):
            raise _messages.value_error(
                "learnable_tau=True needs a number, the temperature to begin with",
                f"how = {_messages.describe(how)}",
                "Pass a number, or a SoftSort whose tau is one.",
            )
        start = keras.initializers.Constant(math.log(tau))
        self.log_tau = self.add_weight(shape=(), initializer=start, name="log_tau")

    @property
    def tau(self) -> Any:
        """The temperature: as it was given, or if it learns a positive scalar tensor."""
        return self.how.tau if self.log_tau is None else keras.ops.exp(self.log_tau)

    def get_config(self) -> dict[str, Any]:
        """Return what the layer is made of again."""
        how = _as_config(self.how)
        return {**super().get_config(), "how": how, **self._own_config()}

    def _own_config(self) -> dict[str, Any]:
        return {**self.arguments, "learnable_tau": self.learnable_tau}

    def _relaxation(self) -> Any:
        if self.log_tau is None:
            return self.how
        return dataclasses.replace(self.how, tau=self.tau)


def _as_config(relaxation: Any) -> dict[str, Any]:
    """Return a relaxation of this library as numbers and names."""
    kind, fields = type(relaxation).__name__, {}
    if type(relaxation) is not getattr(relaxations, kind, None):
        raise ValueError(_not_saved("how", relaxation))
    for field in dataclasses.fields(relaxation):
        value = fields[field.name] = getattr(relaxation, field.name)
        if not (value is None or isinstance(value, (str, *_checks.REAL))):
            raise ValueError(_not_saved(f"{field.name} of {kind}", value))
    return {"relaxation": kind, "fields": fields}


def _from_config(how: Any) -> Any:
    if not isinstance(how, dict):
        return how
    return getattr(relaxations, how["relaxation"])(**how["fields"])


def _not_saved(what: str, value: object) -> str:
    return _messages.message(
        f"a layer is saved with numbers and names alone: {what} must be one",
        _messages.describe(value),
        "Save the weights (model.save_weights), and make the model again in Python.",
    )


def _over_batch(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """Call a function of arrays; where the size of the batch is unknown, on each row of it.

    The batch is the first dimension. Arrays for which it is known are shared by all rows.
    """
    arrays = (first, *others)
    unknown = [x is not None and x.shape.rank > 0 and x.shape[0] is None for x in arrays]
    if not unknown[0]:
        return function(*arrays)

    def of_row(rows: tuple[Any, ...]) -> Any:
        left = iter(rows)
        return function(*(next(left) if u else x for x, u in zip(arrays, unknown, strict=True)))

    return tf.vectorized_map(of_row, tuple(x for x, u in zip(arrays, unknown, strict=True) if u))


class _AlongDimension(_Operation):
    """An operation along a dimension."""

    def _apply(self, operation: Callable[..., Any], x: Any, **others: Any) -> Any:
        """Return operation(x, how=..., **others, **arguments)."""
        how = self._relaxation()

        def of(x: Any, *arrays: Any) -> Any:
            named = dict(zip(others, arrays, strict=True))
            return operation(x, how=how, **named, **{**self.arguments, "dim": dim})

        dim = _checks.check_dim(self.arguments["dim"], x.shape.rank)
        if x.shape[0] is None and dim == -x.shape.rank:
            raise ValueError(_messages.unknown_shape("x along dim", x.shape))
        return _over_batch(of, x, *others.values())


class _Directed(_AlongDimension):
    """An operation along a dimension, in increasing or decreasing order."""

    def __init__(
        self,
        how: Any = 1.0,
        *,
        dim: int = -1,
        descending: bool = False,
        learnable_tau: bool = False,
        **layer: Any,
    ) -> None:
        super().__init__(how, learnable_tau, {"dim": dim, "descending": descending}, **layer)


@keras.saving.register_keras_serializable("softorder")
class Sort(_Directed):
    """`softorder.sort` as a layer.

    Args:
        how: A temperature, or a relaxation.
        dim: The dimension to sort along; the batch is a dimension too.
        descending: Largest first.
        learnable_tau: Make the temperature a weight.
        layer: What every Keras layer takes, such as `name` and `dtype`.

    Example:
        >>> import tensorflow as tf
        >>> from softorder.tensorflow import Sort
        >>> Sort(0.1)(tf.constant([[2.0, 5.0, 4.0]])).shape
        TensorShape([1, 3])
    """

    def call(self, x: Any, by: Any = None, mask: Any = None) -> Any:
        """Sort x, or sort it by other keys."""
        return self._apply(softorder.sort, x, by=by, mask=mask)


@keras.saving.register_keras_serializable("softorder")
class Rank(_Directed):
    """`softorder.rank` as a layer.

    Args:
        how: A temperature, or a relaxation.
        dim: The dimension to rank along; the batch is a dimension too.
        descending: Give rank 1 to the largest.
        learnable_tau: Make the temperature a weight.
        layer: What every Keras layer takes, such as `name` and `dtype`.
    """

    def call(self, x: Any, mask: Any = None) -> Any:
        """Rank x."""
        return self._apply(softorder.rank, x, mask=mask)


@keras.saving.register_keras_serializable("softorder")
class TopK(_AlongDimension):
    """`softorder.topk` as a layer; `softorder.topk_mask` with `as_mask=True`.

    Args:
        k: How many items.
        how: A temperature, or a relaxation.
        dim: The dimension to select along; the batch is a dimension too.
        largest: False for the smallest.
        as_mask: Give each item's share in the k, instead of the k values.
        learnable_tau: Make the temperature a weight.
        layer: What every Keras layer takes, such as `name` and `dtype`.
    """

    def __init__(
        self,
        k: int,
        how: Any = 1.0,
        *,
        dim: int = -1,
        largest: bool = True,
        as_mask: bool = False,
        learnable_tau: bool = False,
        **layer: Any,
    ) -> None:
        super().__init__(how, learnable_tau, {"k": k, "dim": dim, "largest": largest}, **layer)
        self.as_mask = as_mask

    def call(self, x: Any, mask: Any = None) -> Any:
        """Select from x."""
        operation = softorder.topk_mask if self.as_mask else softorder.topk
        return self._apply(operation, x, mask=mask)

    def _own_config(self) -> dict[str, Any]:
        return {**super()._own_config(), "as_mask": self.as_mask}


@keras.saving.register_keras_serializable("softorder")
class Quantile(_AlongDimension):
    """`softorder.quantile` as a layer; q = 0.5 is the median.

    Args:
        q: A number in [0, 1], or several.
        how: A temperature, or a relaxation.
        dim: The dimension to reduce; the batch is a dimension too.
        keepdim: Keep `dim`, with length 1.
        learnable_tau: Make the temperature a weight.
        layer: What every Keras layer takes, such as `name` and `dtype`.
    """

    def __init__(
        self,
        q: float | Sequence[float] = 0.5,
        how: Any = 1.0,
        *,
        dim: int = -1,
        keepdim: bool = False,
        learnable_tau: bool = False,
        **layer: Any,
    ) -> None:
        quantiles = list(q) if isinstance(q, Sequence) else q
        arguments = {"q": quantiles, "dim": dim, "keepdim": keepdim}
        super().__init__(how, learnable_tau, arguments, **layer)

    def call(self, x: Any, mask: Any = None) -> Any:
        """Take the quantiles of x; several q come first."""
        y = self._apply(softorder.quantile, x, mask=mask)
        if x.shape[0] is None and isinstance(self.arguments["q"], list):
            # Row by row, they came after the batch.
            return tf.experimental.numpy.moveaxis(y, 1, 0)
        return y


@keras.saving.register_keras_serializable("softorder")
class KNN(_Operation):
    """`softorder.knn` as a layer: the paper's differentiable nearest neighbours.

    Args:
        k: How many neighbours.
        how: A temperature, or a relaxation.
        num_classes: The number of classes; needed inside tf.function.
        learnable_tau: Make the temperature a weight.
        layer: What every Keras layer takes, such as `name` and `dtype`.

    Example:
        >>> import tensorflow as tf
        >>> from softorder.tensorflow import KNN
        >>> knn = KNN(k=3, how=0.1, num_classes=10)
        >>> query, neighbors = tf.random.normal((5, 8)), tf.random.normal((20, 8))
        >>> knn(query, neighbors, tf.range(20) % 10).shape
        TensorShape([5, 10])
    """

    def __init__(
        self,
        k: int,
        how: Any = 1.0,
        *,
        num_classes: int | None = None,
        learnable_tau: bool = False,
        **layer: Any,
    ) -> None:
        super().__init__(how, learnable_tau, {"k": k, "num_classes": num_classes}, **layer)

    def call(self, query: Any, neighbors: Any, labels: Any = None, mask: Any = None) -> Any:
        """Return weights of the neighbours, or with labels the probabilities of the classes."""
        arguments = {"how": self._relaxation(), **self.arguments}

        def of(query: Any, neighbors: Any, labels: Any, mask: Any) -> Any:
            # A row of a plain table of queries is a single one.
            single = query.shape.rank == 1
            query = query[None, :] if single else query
            found = softorder.knn(query, neighbors, labels=labels, mask=mask, **arguments)
            return found[0, ...] if single else found

        return _over_batch(of, query, neighbors, labels, mask)
