"""The baselines of Table 3."""

import dataclasses

import numpy
import pytest
import sklearn.decomposition
import sklearn.neighbors
import torch
from torch import nn

from softorder_experiments.config import Execution
from softorder_experiments.errors import UserError
from softorder_experiments.launch import run_task
from softorder_experiments.models import (
    ConvolutionalAutoEncoder,
    DenseAutoEncoder,
)
from softorder_experiments.runs import read_records
from softorder_experiments.tasks import BASELINES, TASKS
from test_experiments_knn import ALONE, QUIET
from tolerances import NETWORKS


@pytest.mark.parametrize(
    ("network", "shape", "code"),
    [
        (DenseAutoEncoder, (1, 28, 28), 50),
        (ConvolutionalAutoEncoder, (3, 32, 32), 256),
    ],
)
def test_autoencoders_go_through_their_code(network, shape, code):
    network = network(shape)
    images = torch.rand(4, *shape)
    codes = network.encoder(images)
    assert codes.shape == (4, code)
    assert network(images).shape == images.shape
    assert network(images).min() < 0  # logits
    # The printed codes are behind a ReLU: some of the units are off, none is negative.
    assert codes.min() == 0
    assert codes.max() > 0


def shapes_of(network, kinds):
    """Return the layers of some kinds, in order: the name and what comes out."""
    outputs = {nn.Linear: "out_features", nn.Conv2d: "out_channels", nn.BatchNorm2d: "num_features"}
    return [
        (type(layer).__name__, getattr(layer, outputs.get(type(layer), ""), None))
        for layer in network.modules()
        if isinstance(layer, kinds)
    ]


def test_the_dense_autoencoder_is_the_printed_one():
    network = DenseAutoEncoder((1, 28, 28))
    relu = ("ReLU", None)
    encoder = [("Linear", 500), relu, ("Linear", 500), relu, ("Linear", 50), relu]
    decoder = [("Linear", 500), relu, ("Linear", 500), relu, ("Linear", 784)]
    assert shapes_of(network.encoder, (nn.Linear, nn.ReLU)) == encoder
    assert shapes_of(network.decoder, (nn.Linear, nn.ReLU)) == decoder


def test_the_convolutional_autoencoder_is_the_one_that_the_paper_refers_to():
    network = ConvolutionalAutoEncoder((3, 32, 32))
    kinds = (nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.MaxPool2d, nn.Upsample)

    def stage(width, change):
        return [("Conv2d", width), ("BatchNorm2d", width), ("ReLU", None), (change, None)]

    encoder = [layer for width in (64, 32, 16) for layer in stage(width, "MaxPool2d")]
    decoder = [layer for width in (16, 32, 64) for layer in stage(width, "Upsample")]
    assert shapes_of(network.encoder, kinds) == encoder
    assert shapes_of(network.decoder, kinds) == [*decoder, ("Conv2d", 3), ("BatchNorm2d", 3)]
    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert {layer.kernel_size for layer in convolutions} == {(3, 3)}
    images = torch.rand(2, 3, 32, 32)
    spatial = network.encoder[:-1](images)
    assert spatial.shape == (2, 16, 4, 4)
    with pytest.raises(UserError, match="architecture=dense"):
        ConvolutionalAutoEncoder((1, 28, 28))


@pytest.mark.parametrize("baseline", BASELINES, ids=lambda baseline: baseline.name)
def test_a_baseline_from_its_start_to_its_record(baseline, tmp_path):
    fields = {"epochs": 3} if hasattr(baseline.config_type, "epochs") else {}
    config = dataclasses.replace(baseline.presets["embedded"]({}), **fields)
    execution = Execution(out=str(tmp_path), accelerator="cpu")
    run, record = run_task(baseline(config), execution, QUIET)
    assert record["task"] == baseline.name
    floor = {"pixels": 0.97, "pca": 0.97, "autoencoder": 0.6, "classifier": 0.3}[baseline.name]
    assert record["metrics"]["test"]["accuracy"] >= floor
    assert len(record["curve"]) == fields.get("epochs", 0)
    assert run.picture.exists() == bool(fields)
    again = run_task(baseline(config), execution, QUIET)[1]
    assert again["metrics"] == record["metrics"]
    assert len(read_records(tmp_path)) == 1


def test_baselines_are_the_papers():
    cifar = {"data": "cifar10"}
    assert TASKS["autoencoder"].presets["paper"](cifar).architecture == "convolutional"
    assert TASKS["autoencoder"].presets["paper"]({}).architecture == "dense"
    assert TASKS["classifier"].presets["paper"](cifar).embedding == "resnet18"
    assert TASKS["classifier"].presets["paper"]({}).units == 50
    for name in ("pixels", "pca", "autoencoder"):
        assert TASKS[name].presets["paper"](cifar).data == "cifar10"
    pca = dataclasses.replace(TASKS["pca"].presets["embedded"]({}), components=65)
    with pytest.raises(UserError, match="components must be at most 64"):
        TASKS["pca"](pca).evaluate("test", ALONE)
    pixels = dataclasses.replace(TASKS["pixels"].presets["embedded"]({}), k=2000)
    with pytest.raises(UserError, match="k must be at most the 1257 training images"):
        TASKS["pixels"](pixels)
    with pytest.raises(UserError, match="architecture=dense"):
        ConvolutionalAutoEncoder((1, 28, 28))
    with pytest.raises(UserError, match="must have one device"):
        run_task(
            TASKS["pixels"](TASKS["pixels"].presets["embedded"]({})), Execution(devices=2), QUIET
        )


def test_principal_components_are_those_of_scikit_learn():
    pca = TASKS["pca"](TASKS["pca"].presets["embedded"]({}))
    every = pca.images.of("train", torch.arange(1257)).flatten(1)
    expected = sklearn.decomposition.PCA(20, svd_solver="full").fit(every).transform(every[:9])
    got = pca.features(pca.images.of("train", torch.arange(9)))
    numpy.testing.assert_allclose(got.abs(), abs(expected), atol=NETWORKS["atol"])
