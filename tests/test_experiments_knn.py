"""The task `knn` and its baselines: embeddings, losses, exact neighbours."""

import dataclasses

import numpy
import pytest
import sklearn.decomposition
import sklearn.neighbors
import torch
from rich.console import Console
from torch import nn

import softorder as so
from softorder_experiments import data
from softorder_experiments.config import Execution
from softorder_experiments.data import Pool, random_crop, random_flip
from softorder_experiments.devices import make_fabric
from softorder_experiments.engine import Trainer
from softorder_experiments.errors import UserError
from softorder_experiments.models import (
    ConvolutionalEmbedding,
    ResNet18,
)
from softorder_experiments.progress_display import SilentDisplay
from softorder_experiments.relaxations import RELAXATIONS
from softorder_experiments.runs import Run
from softorder_experiments.tasks import KNN, neighbors
from softorder_experiments.tasks.base import Processes
from softorder_experiments.tasks.images import Images
from softorder_experiments.tasks.knn import PRESETS, embedded, paper, short
from softorder_experiments.tasks.neighbors import nearest, vote
from tolerances import NETWORKS, SAMPLED

ALONE = Processes(0, 1, torch.device("cpu"), lambda tensor: tensor)
QUIET = Console(quiet=True)


def task(**fields):
    return KNN(dataclasses.replace(embedded({}), **fields))


def test_the_convolutional_embedding_is_the_papers():
    network = ConvolutionalEmbedding((1, 28, 28), 50)
    shapes = {name: tuple(p.shape) for name, p in network.named_parameters()}
    assert shapes == {
        "first.weight": (20, 1, 5, 5),
        "first.bias": (20,),
        "second.weight": (50, 20, 5, 5),
        "second.bias": (50,),
        "output.weight": (50, 50 * 4 * 4),
        "output.bias": (50,),
    }
    literal = nn.Sequential(
        network.first, nn.ReLU(), nn.MaxPool2d(2), network.second, nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), network.output, nn.ReLU(),
    )  # fmt: skip
    images = torch.rand(6, 1, 28, 28)
    torch.testing.assert_close(network(images), literal(images))
    assert ConvolutionalEmbedding((1, 8, 8), 7, padded=True)(torch.rand(3, 1, 8, 8)).shape == (3, 7)
    with pytest.raises(UserError, match="padded=true"):
        ConvolutionalEmbedding((1, 8, 8), 50)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_the_residual_network_has_18_layers_and_512_outputs(shape):
    network = ResNet18(shape, 512)
    assert network(torch.rand(2, *shape)).shape == (2, 512)
    large = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert sum(layer.kernel_size == (3, 3) for layer in large) == 17  # and the one we leave out
    widths = [(layer.in_channels, layer.out_channels) for layer in large if layer.stride == (2, 2)]
    assert widths == [(64, 128), (64, 128), (128, 256), (128, 256), (256, 512), (256, 512)]

    def block(before, width):
        shortcut = before * width * (before != width)
        return 2 * before + 9 * before * width + 2 * width + 9 * width**2 + shortcut

    pairs = [(64, 64), (64, 128), (128, 256), (256, 512)]
    expected = 64 * 9 * shape[0] + sum(block(*pair) + block(pair[1], pair[1]) for pair in pairs)
    assert sum(parameter.numel() for parameter in network.parameters()) == expected
    with pytest.raises(UserError, match="units=512"):
        ResNet18(shape, 50)


def test_the_residual_network_is_the_literal_one():
    network = ResNet18((3, 8, 8), 512).eval()
    images = torch.rand(4, 3, 8, 8)
    x = network.first(images)
    for block in network.blocks:
        norms, layers = (block.first_norm, block.second_norm), (block.first, block.second)
        for norm in norms:
            nn.init.normal_(norm.bias)
        inner = torch.relu(norms[0](x))
        kept = x if block.shortcut is None else block.shortcut(inner)
        x = kept + layers[1](torch.relu(norms[1](layers[0](inner))))
    torch.testing.assert_close(network(images), x.mean((2, 3)), **NETWORKS)


def test_embeddings_have_full_precision_under_autocast():
    network = ConvolutionalEmbedding((1, 28, 28), 50)
    with torch.autocast("cpu", torch.bfloat16):
        assert network(torch.rand(2, 1, 28, 28)).dtype == torch.float32
        assert ResNet18((1, 8, 8), 512)(torch.rand(2, 1, 8, 8)).dtype == torch.float32


@pytest.mark.parametrize("relaxation", sorted(RELAXATIONS))
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_loss_is_the_probability_of_the_right_class(relaxation, reduction):
    knn = task(relaxation=relaxation, tau=0.9, k=3, reduction=reduction)
    queries, candidates = torch.randn(4, 2), torch.randn(12, 2)
    truth, labels = torch.randint(10, (4,)), torch.randint(10, (12,))
    got = knn.loss_of(queries, candidates, truth, labels)
    for q in range(4):
        scores = -(queries[q] - candidates).square().sum(-1)
        rows = knn.how(scores).matrix()[:3]
        each = (rows * (labels == truth[q])).sum(-1)
        expected = -(each.mean() if reduction == "mean" else each.sum())
        torch.testing.assert_close(got[q], expected, **NETWORKS)


def test_the_metric_is_a_setting():
    knn = task(metric="square", tau=0.9, k=3)
    queries, candidates = torch.randn(4, 2), torch.randn(12, 2)
    truth, labels = torch.randint(3, (4,)), torch.arange(12) % 3
    expected = so.knn(queries, candidates, 3, so.SoftSort(0.9, "square"), labels=labels)
    expected = -expected.gather(-1, truth[:, None])[:, 0]
    torch.testing.assert_close(knn.loss_of(queries, candidates, truth, labels), expected)
    assert knn.config.label == "k3-softsort-square-digits"


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_optimal_transport_begins_at_an_epsilon_that_finds_the_nearest(preset):
    """At a temperature of the others all 100 candidates are the nearest alike."""
    tau = PRESETS[preset]({"relaxation": "optimal-transport"}).tau
    knn = task(relaxation="optimal-transport", tau=tau, k=9)
    points = torch.linspace(0, 1, 100)[:, None].sqrt()  # equal steps of squared distance
    labels = (torch.arange(100) >= 9).long()  # the nine next to 0, and the others
    right, wrong = (
        -knn.loss_of(torch.zeros(1, 1), points, torch.tensor([truth]), labels) for truth in (0, 1)
    )
    assert right > 0.7 > 0.3 > wrong


def test_cross_entropy_is_the_logarithm_and_finite():
    queries, candidates = torch.randn(4, 2), torch.randn(12, 2)
    truth, labels = torch.zeros(4, dtype=torch.int64), torch.arange(12) % 3
    p = -task(k=3).loss_of(queries, candidates, truth, labels)
    got = task(k=3, loss="cross-entropy").loss_of(queries, candidates, truth, labels)
    torch.testing.assert_close(got, -p.log())
    far = task(k=3, loss="cross-entropy", tau=1e-3).loss_of(
        1e3 * queries, candidates, truth + 9, labels
    )
    assert far.isfinite().all()


def test_the_stochastic_loss_has_samples_of_noise():
    knn, still = (task(k=3, tau=0.5, stochastic=noise) for noise in (True, False))
    queries, candidates = torch.randn(4, 2), torch.randn(12, 2)
    truth, labels = torch.randint(3, (4,)), torch.arange(12) % 3
    torch.manual_seed(0)
    got = knn.loss_of(queries, candidates, truth, labels)
    assert got.shape == (5, 4)
    assert got.std(0).mean() > 0.01
    torch.manual_seed(0)
    scores = -(queries[:, None] - candidates).square().sum(-1).expand(5, 4, 12)
    rows = so.PlackettLuce(scores, still.how).rsample().rows(slice(0, 3))
    right = labels == truth[:, None]
    torch.testing.assert_close(got, -(rows.mean(-2) * right).sum(-1), **NETWORKS)


def test_a_minibatch_has_queries_and_candidates_of_its_own(tmp_path):
    knn = task(batch=10, candidates=20, k=3, crop=0)
    assert knn.images_per_step == 30
    seen = []

    class Embedding(nn.Module):
        def forward(self, images):
            seen.append(images)
            return images.flatten(1)

    loss = knn.loss(Embedding(), 0, ALONE)
    (images,) = seen
    assert images.shape == (30, 1, 8, 8)
    queries, truth = knn.images.minibatch(knn.config, 0, "queries", 10)
    candidates, labels = knn.images.minibatch(knn.config, 0, "candidates", 20)
    assert torch.equal(images, torch.cat([queries, candidates]))
    expected = knn.loss_of(queries.flatten(1), candidates.flatten(1), truth, labels).mean()
    torch.testing.assert_close(loss, expected)
    halves = [
        knn.loss(Embedding(), 0, Processes(rank, 2, torch.device("cpu"), None)) for rank in (0, 1)
    ]
    torch.testing.assert_close(sum(halves) / 2, expected)


def test_an_epoch_goes_through_all_images_once(readable):
    images = Images(config := dataclasses.replace(embedded({}), crop=0, batch=100))
    assert images.batches(100) == KNN(config).steps_per_epoch == 10
    assert KNN(dataclasses.replace(config, steps=7)).steps_per_epoch == 7
    first = [images.minibatch(config, step, "queries", 100)[0] for step in range(10)]
    again = [images.minibatch(config, step, "queries", 100)[0] for step in range(10, 20)]
    for epoch in (first, again):
        counts = (torch.cat(epoch)[:, 0, 0, 0] * 16).round().long().bincount()
        assert counts.tolist() == [100] * 10
    assert not torch.equal(first[0], again[0])
    others, _ = images.minibatch(config, 0, "candidates", 100)
    assert not torch.equal(first[0], others)
    for name in ("batch", "candidates"):
        with pytest.raises(UserError, match=f"{name} must be at most the 1000 training images"):
            KNN(dataclasses.replace(config, **{name: 2000}))


def test_nearest_is_exact_and_bounded(monkeypatch, generator):
    monkeypatch.setattr(neighbors, "_DISTANCES_AT_ONCE", 1000)  # four parts
    queries = torch.randn(37, 5, generator=generator) + 1e4  # far from 0, where float32 fails
    candidates = torch.randn(100, 5, generator=generator) + 1e4
    exact = sklearn.neighbors.NearestNeighbors(n_neighbors=7, algorithm="kd_tree")
    expected = exact.fit(candidates.double()).kneighbors(queries.double(), return_distance=False)
    numpy.testing.assert_array_equal(nearest(queries, candidates, 7), expected)


def test_votes_are_counted_and_ties_go_to_the_nearest():
    labels = torch.tensor([[1, 2, 2], [3, 1, 2], [2, 0, 0], [5, 4, 4], [7, 7, 1]])
    assert vote(labels, 8).tolist() == [2, 3, 0, 4, 7]
    assert vote(torch.tensor([[4, 6, 6, 4]]), 8).item() == 4
    assert vote(torch.tensor([[0, *[1] * 50, *[2] * 49]]), 3).item() == 1


def test_the_accuracy_is_that_of_scikit_learn():
    """On real images, with an odd number of them, on one process and on two."""
    knn = task(k=1, validation_candidates=501, test_queries=101)
    flat = nn.Flatten()
    for split, queries, candidates in (("validation", 180, 501), ("test", 101, 1257)):
        metrics = knn.evaluate(flat, split, ALONE)
        assert (metrics["queries"], metrics["candidates"]) == (queries, candidates)
        index, labels = knn.images.candidates(split)
        fitted = sklearn.neighbors.KNeighborsClassifier(1, algorithm="brute")
        fitted.fit(flat(knn.images.of("train", index)), labels)
        index, truth = knn.images.queries(split)
        assert metrics["accuracy"] == pytest.approx(
            fitted.score(flat(knn.images.of(split, index)), truth)
        )
        assert evaluate_on_two(knn, flat, split) == metrics


def evaluate_on_two(knn, network, split):
    """Let two processes evaluate in turn, the second with what the first has gathered."""
    parts, results = {0: [], 1: []}, {}
    for _ in range(3):  # each call knows more of the other's parts
        for rank in (0, 1):
            mine = []

            def gather(tensor, rank=rank, mine=mine):
                mine.append(tensor)
                other = parts[1 - rank]
                theirs = other[len(mine) - 1] if len(other) >= len(mine) else tensor
                return torch.cat([tensor, theirs] if rank == 0 else [theirs, tensor])

            results[rank] = knn.evaluate(
                network, split, Processes(rank, 2, torch.device("cpu"), gather)
            )
            parts[rank] = mine
    assert results[0] == results[1]
    return results[0]


def test_images_can_be_standardized():
    plain = Images(task().config)
    images = Images(task(standardize=True).config)
    every = torch.arange(1257)
    assert images.of("train", every).mean().item() == pytest.approx(0, abs=NETWORKS["atol"])
    assert images.of("train", every).std().item() == pytest.approx(1, abs=NETWORKS["rtol"])
    raw = plain.of("test", every[:50])
    assert 0 <= raw.min() <= raw.max() <= 1
    correlation = numpy.corrcoef(raw.flatten(), images.of("test", every[:50]).flatten())[0, 1]
    assert correlation == pytest.approx(1)


def test_images_move_and_are_mirrored(generator):
    images = torch.arange(1, 5 * 3 * 16 + 1, dtype=torch.uint8).view(5, 3, 4, 4)
    moved = random_crop(images.repeat(40, 1, 1, 1), 1, generator)
    assert moved.shape == (200, 3, 4, 4)
    padded = torch.nn.functional.pad(images, (1,) * 4)
    windows = {
        tuple(padded[i, :, r : r + 4, c : c + 4].flatten().tolist())
        for i in range(5)
        for r in range(3)
        for c in range(3)
    }
    found = {tuple(image.flatten().tolist()) for image in moved}
    assert found <= windows
    assert len(found) > 30
    mirrored = random_flip(images.repeat(40, 1, 1, 1), generator)
    share = (mirrored == images.repeat(40, 1, 1, 1)).flatten(1).all(-1).float().mean()
    assert share == pytest.approx(0.5, abs=SAMPLED[200])
    for k, image in enumerate(mirrored):
        original = images[k % 5]
        assert torch.equal(image, original) or torch.equal(image, original.flip(-1))


def test_the_papers_setting():
    config = paper({})
    assert (config.batch, config.candidates, config.epochs, config.samples) == (100, 100, 200, 5)
    assert (config.momentum, config.weight_decay, config.schedule) == (0.9, 5e-4, "constant")
    assert (config.embedding, config.units, config.crop) == ("convolutional", 50, 0)
    assert (config.loss, config.reduction, config.data) == ("probability", "mean", "mnist")
    fashion, photographs = paper({"data": "fashion-mnist"}), paper({"data": "cifar10"})
    for config in (fashion, photographs):
        assert (config.embedding, config.units) == ("resnet18", 512)
    assert (fashion.crop, fashion.flip) == (0, False)
    assert (photographs.crop, photographs.flip) == (4, True)
    assert short({"data": "cifar10"}).crop == 4
    assert short({}).epochs <= 20
    for name, preset in PRESETS.items():
        assert preset({}).preset == name


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"k": 0}, "k must be at least 1"),
        ({"k": 101}, "k must be at most the 100 candidates"),
        ({"loss": "hinge"}, "loss must be one of"),
        ({"reduction": "maximum"}, "Did you mean 'sum'|Did you mean 'mean'"),
        ({"embedding": "resnet"}, "Did you mean 'resnet18'"),
        ({"relaxation": "softsrt"}, "Did you mean 'softsort'"),
        ({"validation_candidates": 2}, "at least k"),
        ({"test_queries": 0}, "at least 1, or none"),
        ({"crop": 9}, "from 0 to 8"),
        ({"momentum": 1.0}, "less than 1"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0"),
        ({"units": 0}, "units must be at least 1"),
        ({"padded": False}, "padded=true"),
    ],
)
def test_wrong_settings_are_errors_that_help(fields, text):
    with pytest.raises(UserError, match=text):
        task(**fields).network()


def test_descent_has_momentum_and_decay(tmp_path):
    knn = task(lr=0.25, momentum=0.5, weight_decay=0.125)
    group = knn.optimizer(knn.network()).param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.25, 0.5, 0.125)


def test_the_first_losses_are_what_they_were():
    # Data, order of images, movement, network and loss: a change in any of them is seen here.
    knn = task(tau=0.01, k=5)
    torch.manual_seed(0)
    network = knn.network()
    losses = [knn.loss(network, step, ALONE).item() for step in range(3)]
    assert losses == pytest.approx(FIRST_LOSSES, rel=NETWORKS["rtol"])


FIRST_LOSSES = [-0.11409393, -0.12433171, -0.11377707]


@pytest.fixture
def colourful(monkeypatch):
    """Ten images of 32 x 32 in colour."""
    images = torch.randint(256, (40, 3, 32, 32), dtype=torch.uint8)
    pool = Pool(images, torch.arange(40) % 10)
    monkeypatch.setattr(
        data, "load", lambda name: {"train": pool, "validation": pool, "test": pool}
    )


def test_a_residual_network_trains_on_colour_images(colourful, tmp_path):
    config = dataclasses.replace(short({"data": "cifar10"}), batch=4, candidates=6, k=2)
    fabric = make_fabric(Execution(accelerator="cpu"), "32-true")
    trainer = Trainer(KNN(config), Run(tmp_path, "none"), fabric, SilentDisplay())
    before = trainer._module.first.weight.detach().clone()
    trainer.steps(1)
    assert not torch.equal(before, trainer._module.first.weight)
    trainer._check_finite()
