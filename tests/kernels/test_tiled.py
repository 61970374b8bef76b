"""Tiles: what lies outside the band counts for nothing, and the metric learns through them."""

import pytest
import torch
from torch import nn

import softorder as so
from engines import arguments, assert_alike, tensor, weigh
from inside import operator_of, tiled
from tolerances import AGREEMENT, ENGINE_GRADIENTS, SAME_ENGINE, VALUES, assert_close


class Learned(nn.Module):
    """A metric with a parameter."""

    def __init__(self):
        super().__init__()
        self.log_p = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))

    def forward(self, a, b):
        return (a - b).abs() ** self.log_p.exp()


@pytest.mark.parametrize("tile", [1, 16, 100, 1 << 20])
def test_gradients_reach_the_parameters_of_a_metric_through_tiles(tile, monkeypatch):
    monkeypatch.setattr(tiled, "TILE", tile)
    x, v, tau = arguments((2, 9))
    found = []
    for kernel in ("tiled", "dense"):
        metric = Learned()
        leaves = [t.clone().requires_grad_() for t in (x, v, tau)]
        with so.config(kernel=kernel):
            how = so.SoftSort(leaves[2], metric)
            P = how(leaves[0])
            y = P @ leaves[1][..., None] + P.T @ leaves[1][..., None]
            loss = weigh(y) + P.log_prob(P.order).sum() + P.entropy().sum()
            gradients = torch.autograd.grad(
                loss, [*leaves, metric.log_p], retain_graph=True, create_graph=True
            )
            again = torch.autograd.grad(sum(g.square().sum() for g in gradients), metric.log_p)
        found.append([y, *gradients, *again])
    assert found[0][4] != 0
    assert_alike(*found, AGREEMENT["abs"])


@pytest.mark.parametrize("power", [0.5, 1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("tau", [1e-6, 1e-2, 1.0])
def test_tiles_leave_out_nothing_that_counts(power, tau, monkeypatch):
    monkeypatch.setattr(tiled, "TILE", 1 << 13)
    x, v, _ = arguments((2, 150), torch.float32)
    x = x * 10
    found = []
    for kernel in ("tiled", "dense"):
        leaves = [t.clone().requires_grad_() for t in (x, v)]
        with so.config(kernel=kernel):
            P = so.SoftSort(tau, power)(leaves[0])
            y = P @ leaves[1][..., None] + P.T @ leaves[1][..., None]
        found.append([y, *torch.autograd.grad(weigh(y), leaves)])
    for a, b in zip(*found, strict=True):
        assert_close(a, b, ENGINE_GRADIENTS["abs", "float32"])


@pytest.mark.usefixtures("tiny_tiles")
@pytest.mark.parametrize("tau", [1e-6, 1e-2, 0.3])
@pytest.mark.parametrize("ends", [False, True])
def test_tiles_of_neuralsort_leave_out_nothing_that_counts(tau, ends):
    x, v, _ = arguments((2, 150))
    if ends:
        x[0, 3:30], x[1, 60:90] = torch.inf, -torch.inf
    found = []
    for kernel in ("tiled", "dense"):
        leaves = [t.clone().requires_grad_() for t in (x, v)]
        with so.config(kernel=kernel):
            P = so.NeuralSort(tau)(leaves[0])
            y = P @ leaves[1][..., None] + P.T @ leaves[1][..., None]
        if kernel == "tiled":
            windows = [window.stop - window.start for _, window in operator_of(P)._bands()]
            assert max(windows) < 150
        found.append([y, *torch.autograd.grad(weigh(y), leaves)])
    assert_alike(found[0][:1], found[1][:1], SAME_ENGINE["neuralsort"])
    # Infinite scores are tied: what cancels there is of the size of 1 / tau.
    assert_alike(found[0][1:], found[1][1:], AGREEMENT["neuralsort"], least=1 / tau)


def test_tiles_leave_out_nothing_beside_a_far_score():
    """The sums that find where weights end lost the small gaps: averages were off by 0.3."""
    x = torch.cat([tensor([1e16]), -1e-3 * torch.arange(2000, dtype=torch.float64)])
    found = []
    for kernel in ("tiled", "dense"):
        with so.config(kernel=kernel):
            found.append(so.NeuralSort(1e-3)(x) @ torch.arange(2001, dtype=torch.float64))
    assert_close(*found, VALUES)
