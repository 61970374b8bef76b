"""Relaxations that each break one law of the contract."""

import dataclasses
from collections.abc import Callable

import numpy as np
import torch

import softorder as so
from inside import Dense, Explicit
from softorder.extend import RowSoftmax


@dataclasses.dataclass(frozen=True, eq=False)
class AlteredSort(so.Relaxation):
    """SoftSort's sort and no more, with its result altered by `change(y, x, mask)`."""

    change: Callable
    tau: float = 1.0

    def sort(self, values, *, dim, descending, mask):
        y = so.sort(values, self.tau, dim=dim, descending=descending, mask=mask)
        return self.change(y, values, mask)


@dataclasses.dataclass(frozen=True, eq=False)
class AlteredRank(so.Relaxation):
    """The same for its rank, without a temperature."""

    change: Callable

    def rank(self, scores, *, dim, descending, mask):
        y = so.rank(scores, 1.0, dim=dim, descending=descending, mask=mask)
        return self.change(y, scores, mask)


class AveragedRank(so.Relaxation):
    """Smooth ranks with the whole gradient averaged over tied scores."""

    def rank(self, scores, *, dim, descending, mask):
        x = scores
        if isinstance(x, torch.Tensor) and x.ndim == 1 and mask is None and x.isfinite().all():
            tied = (x[:, None] == x).to(x.dtype)
            x = x.detach() + (tied / tied.sum(-1)) @ (x - x.detach())
        return so.rank(x, so.ApproximateRank(), dim=dim, descending=descending, mask=mask)


def slope_off(y, x, mask):
    return y + 1e-3 * (y - y.detach()) if isinstance(y, torch.Tensor) else y


def slope_off_under_a_mask(y, x, mask):
    return y if mask is None else slope_off(y, x, mask)


def slope_off_at_ties(y, x, mask):
    if not isinstance(x, torch.Tensor) or x.ndim > 1 or mask is not None:
        return y
    tied = (x[:, None] == x).sum(-1) > 1
    lean = torch.cos(torch.arange(len(x))).to(x.dtype)
    return y + torch.where(tied, (x - x.detach()) * lean, 0).sum()


def in_float64(y, x, mask):
    return y.double() if isinstance(y, torch.Tensor) else y.astype(np.float64)


def half_in_float32(y, x, mask):
    return y.float() if isinstance(y, torch.Tensor) and y.dtype.itemsize == 2 else y


def ranks_in_half(y, x, mask):
    return y.to(x.dtype) if isinstance(y, torch.Tensor) else y


def batch_mixed(y, x, mask):
    return y + 1e-6 * y.sum() if y.ndim > 1 else y


def nan_everywhere(y, x, mask):
    return y * np.nan if mask is None and (x != x).any() else y


def nan_nowhere(y, x, mask):
    return y if isinstance(y, torch.Tensor) else np.nan_to_num(y, posinf=np.inf, neginf=-np.inf)


def first_item_counts_more(y, x, mask):
    return y + 1e-3 * (x[..., :1] - x[..., -1:]) if mask is None and x.ndim == 2 else y


def counted_from_zero(y, x, mask):
    return y - 1


def crash_without_items(y, x, mask):
    return y / y.max() * y.max() if y.ndim == 1 else y


class WithIntegers(so.SoftSort):
    def permutation(self, scores, *, dim=-1, mask=None):
        scores = scores if scores.dtype != np.int64 else scores.astype(np.float64)
        return super().permutation(scores, dim=dim, mask=mask)


class WithoutMask(so.SoftSort):
    def permutation(self, scores, *, dim=-1, mask=None):
        return super().permutation(scores, dim=dim)


class Clipped(so.SoftSort):
    """Infinities become large numbers: they are then sorted with the others."""

    def permutation(self, scores, *, dim=-1, mask=None):
        return super().permutation(scores.clip(-10_000, 10_000), dim=dim, mask=mask)


class NeverCold(so.SoftSort):
    def weights(self, scores):
        return so.SoftSort(max(self.tau, 0.5)).weights(scores)


class HeavyRows(Dense):
    def log_rows(self, rows=None):
        return super().log_rows(rows) + 2e-3


class CertainRows(Dense):
    def entropy(self, rows=None):
        return super().entropy(rows) * (1 - 1e-3)


class UnstableRows(Dense):
    def __init__(self, softmax, scores):
        super().__init__(softmax, scores)
        xp = self.wiring.xp
        self.order = xp.flip(xp.argsort(scores.scores, axis=-1, stable=True), axis=-1)


@dataclasses.dataclass(frozen=True, eq=False)
class Rows(so.SoftSort):
    """SoftSort with another operator."""

    rows: type[Dense] = Dense

    def weights(self, scores):
        spec = super().weights(scores)
        return Explicit(lambda scores: self.rows(spec.formula.rows(scores, spec.tau), scores))


class Increasing(so.SoftSort):
    """The matrix of the increasing order."""

    def permutation(self, scores, *, dim=-1, mask=None):
        return super().permutation(scores, dim=dim, mask=mask).flip()


class NaivePower(so.SoftSort):
    """|u|^1.5 as it stands: its second derivative at 0 is infinite."""

    def weights(self, scores):
        def logits(scores, rows):
            gap = scores.at(rows)[..., :, None] - scores.items[..., None, :]
            return -(abs(gap) ** 1.5) / self.tau

        return RowSoftmax(logits)


class Downwards(so.Relaxation):
    def sort(self, values, *, dim, descending, mask):
        return so.sort(values, 1.0, dim=dim, descending=not descending, mask=mask)


class OneDirection(so.Relaxation):
    def sort(self, values, *, dim, descending, mask):
        return so.sort(values, 1.0, dim=dim, mask=mask)


class LastDim(so.Relaxation):
    def sort(self, values, *, dim, descending, mask):
        return so.sort(values, 1.0, descending=descending, mask=mask)
