"""The task `sort`: the paper's network, loss, counts and metrics."""

import dataclasses
import hashlib
import itertools
import json
import math

import numpy
import pytest
import torch
from torch import nn

import softorder as so
from softorder_experiments import data
from softorder_experiments.config import Execution, from_json, override, parse_settings
from softorder_experiments.data import Pool
from softorder_experiments.devices import make_fabric
from softorder_experiments.engine import Trainer
from softorder_experiments.errors import UserError
from softorder_experiments.models import DigitNetwork, he_normal, truncated_normal
from softorder_experiments.progress_display import SilentDisplay
from softorder_experiments.relaxations import RELAXATIONS
from softorder_experiments.runs import Run
from softorder_experiments.sweeps.plan import TableOptions, plan
from softorder_experiments.tasks.base import Processes
from softorder_experiments.tasks.sort import (
    PRESETS,
    Sort,
    SortConfig,
    correct_elements,
    embedded,
    paper,
    short,
)
from tolerances import CANCELLED, NETWORKS, SAMPLED

ALONE = Processes(0, 1, torch.device("cpu"), lambda tensor: tensor)


def task(**fields):
    return Sort(dataclasses.replace(embedded({}), **{"shift": 0, **fields}))


def trainer_of(sort, folder):
    fabric = make_fabric(Execution(accelerator="cpu"), "32-true")
    return Trainer(sort, Run(folder, "none"), fabric, SilentDisplay())


class Reader(nn.Module):
    """Reads numbers of constant images, as a network that has learnt it all."""

    def forward(self, images):
        digits = images[..., 0, 0, ::2] * 16
        return (digits * torch.tensor([10.0, 1.0])).sum(-1)


def test_the_network_is_the_papers():
    network = DigitNetwork((1, 28, 112))
    shapes = {name: tuple(p.shape) for name, p in network.named_parameters()}
    assert shapes == {
        "first.weight": (32, 1, 5, 5),
        "first.bias": (32,),
        "second.weight": (64, 32, 5, 5),
        "second.bias": (64,),
        "hidden.weight": (64, 64 * 7 * 28),
        "hidden.bias": (64,),
        "output.weight": (1, 64),
        "output.bias": (1,),
    }
    images = torch.rand(2, 3, 1, 28, 112)
    literal = nn.Sequential(
        network.first, nn.ReLU(), nn.MaxPool2d(2), network.second, nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), network.hidden, nn.ReLU(), network.output,
    )  # fmt: skip
    expected = literal(images.flatten(0, 1)).view(2, 3)
    torch.testing.assert_close(network(images), expected)
    parameters = list(network.parameters())
    got = torch.autograd.grad(network(images).square().sum(), parameters)
    wanted = torch.autograd.grad(expected.square().sum(), parameters)
    for left, right in zip(got, wanted, strict=True):
        torch.testing.assert_close(left, right, **NETWORKS)


@pytest.mark.parametrize("shape", [(1, 8, 16), (1, 8, 8), (3, 32, 64)])
def test_the_network_takes_the_shape_of_the_data(shape):
    assert DigitNetwork(shape)(torch.rand(4, 5, *shape)).shape == (4, 5)


def test_scores_have_full_precision_under_autocast():
    network = DigitNetwork((1, 8, 8))
    with torch.autocast("cpu", torch.bfloat16):
        scores = network(torch.rand(200, 1, 8, 8))
    assert scores.dtype == torch.float32
    assert len(scores.unique()) == 200


def test_weights_are_drawn_as_the_authors_did():
    network = DigitNetwork((1, 28, 112))
    truncated_normal(network)
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0.1).all()
        else:
            assert parameter.abs().max() <= 0.2
    # A normal that is cut at two deviations has 0.88 of its deviation.
    assert network.hidden.weight.std().item() == pytest.approx(0.1 * 0.8796, rel=SAMPLED[100_000])


def test_he_weights_keep_the_scale():
    network = DigitNetwork((1, 28, 112))
    he_normal(network)
    assert network.second.weight.std().item() == pytest.approx(
        (2 / 800) ** 0.5, rel=SAMPLED[50_000]
    )
    assert (network.hidden.bias == 0).all()


@pytest.mark.parametrize("centred", [True, False])
def test_centred_units_keep_weights_of_mean_0(centred, tmp_path):
    """From the first step on, through whatever Fabric wraps the optimiser in."""
    trainer = trainer_of(task(centred=centred), tmp_path)
    for _ in range(3):
        network = trainer._module
        channels = network.hidden.weight.view(64, 64, -1)
        for means in (channels.mean(-1), network.second.weight.flatten(1).mean(-1)):
            assert (means.abs().max() < CANCELLED) == centred
        for layer in (network.first, network.output):
            assert layer.weight.mean().abs() > CANCELLED
        trainer._step()


def test_the_hidden_layer_has_a_rate_of_its_own(tmp_path):
    """Adam's first step is as long as the rate."""
    sort = task(hidden_rate=0.25, centred=False, lr=0.01, schedule="constant")
    trainer = trainer_of(sort, tmp_path)
    before = {name: p.detach().clone() for name, p in trainer._module.named_parameters()}
    trainer._step()
    for name, parameter in trainer._module.named_parameters():
        longest = (parameter - before[name]).abs().max().item()
        if name != "output.bias":  # it moves all scores alike: no gradient
            expected = 0.0025 if name.startswith("hidden") else 0.01
            assert longest == pytest.approx(expected, rel=NETWORKS["rtol"]), name


@pytest.mark.parametrize("relaxation", sorted(RELAXATIONS))
def test_the_loss_is_the_mean_cross_entropy_of_the_rows(relaxation):
    sort = task(relaxation=relaxation, tau=0.7, n=4)
    scores = torch.randn(6, 4)
    truth = torch.stack([torch.randperm(4) for _ in range(6)])
    matrix = sort.relaxation(scores).matrix()
    rows = torch.take_along_dim(matrix, truth[..., None], -1)[..., 0]
    torch.testing.assert_close(sort.cross_entropy(scores, truth), -rows.log().mean(-1), **NETWORKS)


def test_the_truth_is_the_permutation_that_sorts_downwards(readable):
    sort = task(tau=1e-3)
    assert sort.loss(Reader(), 0, ALONE) < 0.2  # equal numbers cost log 2 each
    sort = task(tau=1.0)
    upside_down = sort.loss(lambda images: -Reader()(images), 0, ALONE)
    assert upside_down > 20


def test_losses_of_samples_are_added(readable):
    scores = torch.randn(20, 5)
    truth = torch.arange(5).expand(20, 5)
    one, five = task(stochastic=True, samples=1), task(stochastic=True)
    assert five.config.samples == 5
    torch.manual_seed(0)
    added = five.cross_entropy(scores, truth)
    torch.manual_seed(0)
    noisy = so.PlackettLuce(scores, five.relaxation).rsample((5,))
    each = -noisy.log_prob(truth.expand(5, 20, 5)) / 5
    torch.testing.assert_close(added, each.sum(0))
    assert each.std(0).mean() > 0.05  # the noise is there
    mean = torch.stack([one.cross_entropy(scores, truth) for _ in range(200)]).mean()
    assert added.mean() / mean == pytest.approx(5, rel=SAMPLED[100])


def test_digits_are_moved_when_training_only(readable):
    still, moving = task(), task(shift=1)
    for split, moves in (("train", True), ("test", False)):
        images = [sort.sequences(split, 0, ALONE)[0] for sort in (still, moving)]
        assert torch.equal(*images) is not moves


def test_metrics_count_right_permutations_and_elements():
    values = torch.tensor([[30, 10, 20], [5, 5, 1], [1, 2, 3], [9, 8, 7]])
    scores = torch.tensor([[3.0, 1.0, 2.0], [0.1, 0.2, 0.0], [1.0, 3.0, 2.0], [7.0, 8.0, 9.0]])
    right = correct_elements(scores, values)
    assert right.tolist() == [
        [True, True, True],
        [True, True, True],  # equal values are right in either order
        [False, False, True],
        [False, True, False],
    ]


def test_a_perfect_reader_is_always_right_and_a_blind_one_guesses(readable):
    sort = task(validation_batches=40)
    assert sort.evaluate(Reader(), "validation", ALONE) == {
        "permutations_right": 1.0,
        "elements_right": 1.0,
        "sequences": 800,
    }
    generator = torch.Generator().manual_seed(0)
    blind = sort.evaluate(
        lambda images: torch.rand(images.shape[:2], generator=generator), "validation", ALONE
    )
    assert blind["elements_right"] == pytest.approx(1 / 5, abs=SAMPLED[4000])
    assert blind["permutations_right"] == pytest.approx(1 / 120, abs=SAMPLED[300] / 5)


def test_processes_share_the_evaluation(readable):
    sort = task(test_batches=5)
    counts = []
    for rank in (0, 1):
        gather = lambda tensor: counts.append(tensor) or tensor  # noqa: E731
        sort.evaluate(Reader(), "test", Processes(rank, 2, torch.device("cpu"), gather))
    assert [int(count[0, 0]) for count in counts] == [60, 40]


def test_an_epoch_is_as_long_as_the_papers(monkeypatch):
    sizes = {"train": 55_000, "validation": 5_000, "test": 10_000}
    pools = {
        name: Pool(torch.zeros(size, 1, 1, 1, dtype=torch.uint8), torch.arange(size) % 10)
        for name, size in sizes.items()
    }
    monkeypatch.setattr(data, "load", lambda name: pools)
    sort = Sort(paper({"n": 5}))
    assert sort.steps_per_epoch == 55_000 // (4 * 20) == 687
    assert sort.batches("validation") == 5_000 // 80
    assert sort.batches("test") == 10_000 // 80
    assert sort.images_per_step == 100
    assert Sort(override(paper({}), {"test_batches": 500})).batches("test") == 500


def test_the_papers_setting():
    for n, tau in ((3, 1024), (5, 1024), (7, 1024), (9, 128), (15, 128)):
        config = paper({"n": n})
        assert (config.n, config.tau) == (n, tau)
    config = paper({})
    assert (config.lr, config.batch, config.epochs, config.digits) == (0.005, 20, 100, 4)
    assert (config.schedule, config.averaging, config.samples) == ("constant", 0.0, 5)
    assert (config.initialization, config.precision) == ("truncated-normal", "32-true")
    assert config.data == "mnist"
    assert short({}).epochs <= 10
    assert (embedded({}).n, embedded({}).digits, embedded({}).data) == (5, 2, "digits")
    assert embedded({}).relaxation == "softsort"
    for name, preset in PRESETS.items():
        assert preset({}).preset == name


@pytest.mark.parametrize("preset", sorted(PRESETS))
@pytest.mark.parametrize("n", [3, 5, 15])
def test_optimal_transport_begins_at_an_epsilon_that_tells_right_from_wrong(preset, n):
    """At a temperature of the others, 1024, its matrix says nothing: the loss is log n."""
    config = PRESETS[preset]({"n": n, "relaxation": "optimal-transport"})
    sort = task(relaxation="optimal-transport", tau=config.tau, n=n)
    scores, truth = torch.arange(n, 0, -1.0)[None], torch.arange(n)[None]
    assert sort.cross_entropy(scores, truth) < 0.25 * math.log(n)
    assert sort.cross_entropy(-scores, truth) > 2 * math.log(n)


def test_a_sweep_searches_epsilons_for_optimal_transport_and_the_printed_tau_for_others():
    choice = TableOptions(relaxations=("softsort", "optimal-transport"), n=(5,), stochastic=False)
    softsort, transport = plan("table1", choice)
    assert [point["tau"] for point in softsort.grid] == [1, 16, 128, 1024]
    assert softsort.config.tau == 1024
    epsilons = [point["tau"] for point in transport.grid]
    assert max(epsilons) <= 0.3
    assert transport.config.tau in epsilons
    cells = plan("table3", dataclasses.replace(choice, n=(), data=("mnist",), baselines=False))
    found = [{point["tau"] for point in cell.grid} for cell in cells]
    assert found == [{1, 4, 16, 64, 128, 512}, set(epsilons)]


@pytest.mark.parametrize(("metric", "power"), [("abs", 1), ("square", 2), ("1.5", 1.5)])
def test_the_metric_is_a_setting(metric, power):
    sort = task(metric=metric, tau=0.7, n=4)
    scores, truth = torch.randn(6, 4), torch.arange(4).expand(6, 4)
    ordered = scores.sort(descending=True).values
    logits = -((ordered[..., None] - scores[..., None, :]).abs() ** power) / 0.7
    expected = -torch.log_softmax(logits, -1).diagonal(dim1=-2, dim2=-1).mean(-1)
    torch.testing.assert_close(sort.cross_entropy(scores, truth), expected, **NETWORKS)
    words = {"abs": "softsort", "square": "softsort-square", "1.5": "softsort-1.5"}
    assert sort.config.label == f"n4-{words[metric]}-digits"


def test_a_setting_that_came_later_is_no_part_of_a_name_at_its_default():
    config = paper({})
    before = dataclasses.asdict(config)
    del before["metric"]
    text = json.dumps([type(config).__name__, before], sort_keys=True)
    assert config.fingerprint() == hashlib.sha256(text.encode()).hexdigest()[:8]
    assert override(config, {"metric": "square"}).fingerprint() != config.fingerprint()


def test_the_first_losses_are_what_they_were():
    # Data, initialisation, network and loss: a change in any of them is seen here.
    sort = task(tau=1.0, centred=False)
    torch.manual_seed(0)
    network = sort.network()
    losses = [sort.loss(network, step, ALONE).item() for step in range(3)]
    assert losses == pytest.approx(FIRST_LOSSES, rel=NETWORKS["rtol"])


FIRST_LOSSES = [1.630874, 1.661827, 1.632797]


@pytest.mark.parametrize(
    ("setting", "name", "value"),
    [
        ("lr=0.1", "lr", 0.1),
        ("n=7", "n", 7),
        ("stochastic=true", "stochastic", True),
        ("stochastic=False", "stochastic", False),
        ("test_batches=none", "test_batches", None),
        ("test_batches=3", "test_batches", 3),
        ("relaxation=neuralsort", "relaxation", "neuralsort"),
    ],
)
def test_settings_have_the_types_of_their_fields(setting, name, value):
    changes = parse_settings(SortConfig, [setting])
    assert changes == {name: value}
    assert getattr(override(paper({}), changes), name) == value


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("lr", "NAME=VALUE"),
        ("lr=fast", "a number"),
        ("n=2.5", "a whole number"),
        ("stochastic=maybe", "true or false"),
        ("epoch=3", "Did you mean 'epochs'"),
        ("taw=3", "Did you mean 'tau'"),
        ("tau=0", "tau must be positive"),
        ("tau=nan", "tau must be positive"),
        ("n=1", "n must be from 2 to 1000"),
        ("lr=-1", "lr must be positive"),
        ("hidden_rate=-1", "hidden_rate must be finite"),
        ("averaging=1", "averaging must be"),
        ("epochs=0", "epochs must be at least 1"),
        ("seed=-1", "seed must be"),
        ("test_batches=0", "at least 1, or none"),
        ("metric=cube", "abs, square or a positive power"),
        ("metric=-2", "abs, square or a positive power"),
        ("metric=nan", "abs, square or a positive power"),
    ],
)
def test_wrong_settings_are_errors_that_help(setting, text):
    with pytest.raises(UserError, match=text):
        override(paper({}), parse_settings(SortConfig, [setting]))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"relaxation": "softsrt"}, "Did you mean 'softsort'"),
        ({"initialization": "he"}, "Did you mean 'he-normal'"),
        ({"data": "mnst"}, "Did you mean 'mnist'"),
        ({"metric": "square", "relaxation": "neuralsort"}, "only softsort has other"),
    ],
)
def test_wrong_names_are_errors_with_the_nearest(fields, text):
    with pytest.raises(UserError, match=text):
        task(**fields)


def test_configurations_survive_json_and_are_told_apart():
    config = paper({"n": 9})
    fields = dataclasses.asdict(config)
    assert from_json(SortConfig, fields) == config
    with pytest.raises(UserError, match="Another version"):
        from_json(SortConfig, {**fields, "colour": "red"})
    marks = [c.fingerprint() for c in (config, paper({}), short({}), embedded({}))]
    assert len(set(marks)) == 4
    assert config.fingerprint() == from_json(SortConfig, fields).fingerprint()


def test_the_picture_shows_sequence_permutation_and_curve(tmp_path):
    sort = task()
    network = sort.network()
    curve = [
        {
            "epoch": k,
            "loss": 1 / k,
            "validation": {"elements_right": 0.5, "permutations_right": 0.1},
        }
        for k in (1, 2, 3)
    ]
    with torch.inference_mode():
        sort.draw(network, {"curve": curve}, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_every_relaxation_with_a_matrix_has_a_name():
    found = {
        value
        for value in vars(so).values()
        if isinstance(value, type) and issubclass(value, so.PermutationRelaxation)
    }
    assert set(RELAXATIONS.values()) == found - {so.PermutationRelaxation}


def test_steps_of_training_see_different_sequences(readable):
    sort = task()
    draws = [sort.sequences(split, k, ALONE)[1] for split in ("train", "test") for k in range(3)]
    for left, right in itertools.combinations(draws, 2):
        assert not torch.equal(left, right)
    assert numpy.mean([draw.float().mean() for draw in draws]) == pytest.approx(
        49.5, rel=SAMPLED[300]
    )
