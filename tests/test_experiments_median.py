"""The task `median`: the paper's networks, losses and metrics."""

import dataclasses

import numpy
import pytest
import torch
from scipy import stats
from torch import nn

import softorder as so
from softorder_experiments.config import Execution
from softorder_experiments.devices import make_fabric
from softorder_experiments.engine import Trainer
from softorder_experiments.errors import UserError
from softorder_experiments.models import DigitNetwork, MedianNetwork
from softorder_experiments.progress_display import SilentDisplay
from softorder_experiments.relaxations import RELAXATIONS
from softorder_experiments.runs import Run
from softorder_experiments.tasks.base import Processes
from softorder_experiments.tasks.median import (
    PRESETS,
    Median,
    embedded,
    paper,
    regression_metrics,
    short,
)
from tolerances import CANCELLED, LIMIT, NETWORKS, SAMPLED

ALONE = Processes(0, 1, torch.device("cpu"), lambda tensor: tensor)


def task(**fields):
    return Median(dataclasses.replace(embedded({}), **{"shift": 0, **fields}))


class Reader(nn.Module):
    """Reads numbers of constant images, as two networks that have learnt it all."""

    def forward(self, images, weigh=None):
        numbers = (images[..., 0, 0, ::2] * 16 * torch.tensor([10.0, 1.0])).sum(-1)
        if weigh is None:
            return numbers, numbers
        return numbers, (weigh(numbers) * numbers).sum(-1)


def test_the_networks_are_two_of_the_papers():
    network = MedianNetwork((1, 8, 16))
    images = torch.rand(2, 3, 1, 8, 16)
    scores, values = network(images)
    assert isinstance(network.scores, DigitNetwork)
    torch.testing.assert_close(scores, network.scores(images))
    torch.testing.assert_close(values, network.values(images))
    assert not torch.allclose(scores, values)
    assert len(list(network.parameters())) == 2 * len(list(network.scores.parameters()))


def test_networks_speak_in_units():
    images = torch.rand(2, 3, 1, 8, 16)
    plain, large = (task(unit=unit) for unit in (1.0, 100.0))
    networks = []
    for median in (plain, large):
        torch.manual_seed(0)
        networks.append(median.network())
    for small, big in zip(*(network(images) for network in networks), strict=True):
        torch.testing.assert_close(100 * small, big)
    weigh = lambda scores: scores.sigmoid()[None]  # noqa: E731
    scores, values = networks[1](images, weigh)
    soft = torch.einsum("sbn,bnchw->sbchw", weigh(scores), images)
    torch.testing.assert_close(values, 100 * networks[1].values(soft))
    with pytest.raises(UserError, match="unit must be positive"):
        task(unit=0.0)


def test_the_printed_form_takes_the_value_of_the_soft_image():
    network = MedianNetwork((1, 8, 16))
    images = torch.rand(2, 3, 1, 8, 16)
    weights = torch.rand(4, 2, 3)
    scores, values = network(images, lambda scores: weights)
    expected = torch.stack(
        [
            network.values((weights[s, :, :, None, None, None] * images).sum(1)) for s in range(4)
        ]
    )  # fmt: skip
    torch.testing.assert_close(values, expected)
    torch.testing.assert_close(scores, network.scores(images))
    config = {"of_soft_image": True, "tau": 1.0}
    median = task(**config)
    images, numbers = median.sequences("train", 0, ALONE)
    torch.manual_seed(0)
    network = median.network()
    soft = median.relaxation(network.scores(images)).matrix()[:, 2]
    of_soft = network.values(torch.einsum("bn,bnchw->bchw", soft, images))
    truth = numbers.median(-1).values
    torch.testing.assert_close(
        median.loss(network, 0, ALONE), (of_soft - truth).square().mean(), **NETWORKS
    )


@pytest.mark.parametrize("relaxation", sorted(RELAXATIONS))
def test_weights_are_the_middle_row(relaxation):
    median = task(relaxation=relaxation, tau=0.7)
    scores = torch.randn(6, 5)
    matrix = median.relaxation(scores).matrix()
    torch.testing.assert_close(median.weights(scores), matrix[None, :, 2], **NETWORKS)


def test_the_metric_is_a_setting():
    scores = torch.randn(3, 5)
    square = task(n=5, tau=0.7, metric="square")
    expected = so.SoftSort(0.7, "square")(scores).matrix()[:, 2]
    torch.testing.assert_close(square.weights(scores)[0], expected, **NETWORKS)
    assert square.config.label == "n5-softsort-square-digits"


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_optimal_transport_begins_at_an_epsilon_that_finds_the_middle(preset):
    """At a temperature of the others every number is the median alike."""
    tau = PRESETS[preset]({"relaxation": "optimal-transport"}).tau
    weights = task(n=5, relaxation="optimal-transport", tau=tau).weights(torch.arange(5.0)[None])
    assert weights[0, 0, 2] > 0.5


def test_the_deterministic_loss_is_that_of_the_expected_value():
    median = task()
    weights, values = torch.rand(1, 6, 5), 10 * torch.rand(6, 5)
    truth = 10 * torch.rand(6)
    expected = [
        (truth[b] - sum(weights[0, b, j] * values[b, j] for j in range(5))) ** 2 for b in range(6)
    ]
    got = median.squared_error(weights, values, truth)
    torch.testing.assert_close(got[0], torch.stack(expected))


def test_the_stochastic_loss_is_the_expected_one_averaged_over_samples():
    median = task(stochastic=True, tau=2.0)
    assert median.config.samples == 5
    scores, values, truth = torch.randn(6, 5), 10 * torch.rand(6, 5), 10 * torch.rand(6)
    torch.manual_seed(0)
    weights = median.weights(scores)
    assert weights.shape == (5, 6, 5)
    torch.manual_seed(0)
    noisy = so.PlackettLuce(scores, median.relaxation).rsample((5,))
    torch.testing.assert_close(weights, noisy.rows(2))
    assert weights.std(0).mean() > 0.01  # the noise is there
    expected = torch.zeros(5, 6)
    for s in range(5):
        for b in range(6):
            for j in range(5):
                expected[s, b] += weights[s, b, j] * (truth[b] - values[b, j]) ** 2
    torch.testing.assert_close(median.squared_error(weights, values, truth), expected)


@pytest.mark.parametrize("of_soft_image", [False, True])
def test_a_perfect_reader_has_no_loss_when_hard(readable, of_soft_image):
    median = task(tau=1e-4, of_soft_image=of_soft_image)
    assert median.loss(Reader(), 0, ALONE) < LIMIT
    noisy = task(tau=1e-4, stochastic=True, of_soft_image=of_soft_image)
    torch.manual_seed(0)
    assert 0 < noisy.loss(Reader(), 0, ALONE) < 100  # Gumbel noise moves scores by a few units


def test_a_perfect_reader_finds_every_median(readable):
    metrics = task(validation_batches=10).evaluate(Reader(), "validation", ALONE)
    assert metrics == {
        "mean_squared_error": 0.0,
        "spearman": pytest.approx(1.0),
        "spearman_squared": pytest.approx(1.0),
        "r_squared": 1.0,
        "medians_found": 1.0,
        "sequences": 200,
    }


def test_metrics_are_those_of_scipy():
    rng = numpy.random.default_rng(0)
    truth = torch.tensor(rng.integers(0, 100, 300)).double()
    predicted = truth + 20 * torch.tensor(rng.normal(size=300))
    chosen = torch.where(torch.tensor(rng.random(300) < 0.25), truth, truth + 1)
    metrics = regression_metrics(truth, predicted, chosen)
    residual = ((predicted - truth) ** 2).numpy()
    assert metrics["mean_squared_error"] == pytest.approx(residual.mean())
    ranks = [stats.rankdata(x.numpy()) for x in (truth, predicted)]
    rho = numpy.corrcoef(*ranks)[0, 1]
    assert metrics["spearman"] == pytest.approx(rho)
    assert metrics["spearman_squared"] == pytest.approx(rho**2)
    assert metrics["r_squared"] == pytest.approx(1 - residual.mean() / truth.numpy().var())
    assert metrics["medians_found"] == pytest.approx(0.25, abs=SAMPLED[300])
    constant = regression_metrics(truth, torch.zeros_like(truth), chosen)
    assert constant["spearman"] == 0.0
    assert constant["r_squared"] < 0


def test_the_smallest_error_is_the_best():
    assert Median.score({"mean_squared_error": 2.0}) > Median.score({"mean_squared_error": 3.0})


def test_processes_share_the_evaluation(readable):
    median = task(test_batches=5)
    whole = median.evaluate(Reader(), "test", ALONE)
    parts = []
    for rank in (0, 1):
        keep = lambda tensor: parts.append(tensor) or tensor  # noqa: E731
        median.evaluate(Reader(), "test", Processes(rank, 2, torch.device("cpu"), keep))
    joined = Processes(0, 2, torch.device("cpu"), lambda _: torch.cat(parts))
    assert median.evaluate(Reader(), "test", joined) == whole
    assert whole["sequences"] == 100


def test_the_papers_setting():
    printed = {
        ("softsort", False): (2048, 2048, 256),
        ("softsort", True): (4096, 2048, 2048),
        ("neuralsort", False): (1024, 512, 1024),
        ("neuralsort", True): (2048, 512, 4096),
    }
    for (relaxation, stochastic), taus in printed.items():
        for n, tau in zip((5, 9, 15), taus, strict=True):
            config = paper({"n": n, "relaxation": relaxation, "stochastic": stochastic})
            assert (config.n, config.tau) == (n, tau)
    config = paper({})
    assert (config.lr, config.batch, config.epochs, config.digits) == (0.001, 5, 100, 4)
    assert (config.data, config.samples, config.of_soft_image) == ("mnist", 5, False)
    assert (config.initialization, config.schedule) == ("truncated-normal", "constant")
    assert config.unit == 1
    assert short({}).epochs <= 10
    assert paper({"n": 21, "relaxation": "softrank"}).tau == 256
    assert (embedded({}).n, embedded({}).digits, embedded({}).data) == (5, 2, "digits")
    for name, preset in PRESETS.items():
        assert preset({}).preset == name


def test_an_even_n_has_no_middle():
    with pytest.raises(UserError, match="n must be odd"):
        task(n=4)


def test_both_networks_are_trained_and_kept_centred(tmp_path):
    fabric = make_fabric(Execution(accelerator="cpu"), "32-true")
    trainer = Trainer(task(centred=True), Run(tmp_path, "none"), fabric, SilentDisplay())
    before = {name: p.detach().clone() for name, p in trainer._module.named_parameters()}
    trainer.steps(2)
    for name, parameter in trainer._module.named_parameters():
        if name != "scores.output.bias":  # it moves all scores alike: no gradient
            assert not torch.equal(parameter, before[name]), name
    for part in trainer._module.children():
        assert part.second.weight.flatten(1).mean(-1).abs().max() < CANCELLED


def test_the_first_losses_are_what_they_were():
    # Data, initialisation, network and loss: a change in any of them is seen here.
    median = task(tau=4.0, centred=False, initialization="he-normal")
    torch.manual_seed(0)
    network = median.network()
    losses = [median.loss(network, step, ALONE).item() for step in range(3)]
    assert losses == pytest.approx(FIRST_LOSSES, rel=NETWORKS["rtol"])


FIRST_LOSSES = [2866.7637, 2245.6323, 2133.6812]


def test_the_picture_shows_medians_and_curve(tmp_path):
    median = task()
    point = {"spearman": 0.5, "medians_found": 0.1}
    curve = [{"epoch": k, "loss": 1 / k, "validation": point} for k in (1, 2, 3)]
    with torch.inference_mode():
        median.draw(median.network(), {"curve": curve}, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
