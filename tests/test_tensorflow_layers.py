"""TensorFlow: layers of Keras."""

import numpy as np
import pytest
import tensorflow as tf

import softorder as so
from tensorflow_cases import KEYS, METRIC, TIED, X
from tolerances import GRADIENTS, VALUES, assert_close


@pytest.fixture(scope="module")
def layers():
    from softorder.tensorflow import layers

    return layers


def test_layers_are_the_operations(layers):
    """With a known batch, and row by row with an unknown one."""
    x = X.astype("float32")
    neighbors, labels = x[:2] + 0.1, np.array([0, 1])
    cases = [
        (layers.Quantile([0.2, 0.5], 0.3), lambda x: so.quantile(x, [0.2, 0.5], 0.3)),
        (layers.Rank(so.NeuralSort(0.5)), lambda x: so.rank(x, so.NeuralSort(0.5))),
        (layers.TopK(2, 0.3, as_mask=True), lambda x: so.topk_mask(x, 2, 0.3)),
        (layers.Sort(0.3, descending=True), lambda x: so.sort(x, 0.3, descending=True)),
        (layers.TopK(2, 0.3, largest=False), lambda x: so.topk(x, 2, 0.3, largest=False)),
        (layers.Quantile(0.2, 0.3, keepdim=True), lambda x: so.quantile(x, 0.2, 0.3, keepdim=True)),
    ]
    knn = layers.KNN(1, 0.3, num_classes=2)
    given = [tf.constant(a) for a in (neighbors, labels)]

    def run(x, cases=cases):
        return [knn(x, *given), *(layer(x) for layer, _ in cases)]

    expected = [so.knn(x, neighbors, 1, 0.3, labels=labels, num_classes=2)]
    expected += [function(x) for _, function in cases]
    # Two of them: a trace takes its time.
    unknown = tf.function(lambda x: run(x, cases[:1]), input_signature=[tf.TensorSpec((None, 5))])
    found = run(tf.constant(x)) + unknown(tf.constant(x))
    for ours, theirs in zip(found, expected + expected[:2], strict=True):
        assert_close(ours, theirs, VALUES)


# Keras reads its own variables in a way that NumPy warns of.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_a_model_learns_its_temperature_and_is_saved(layers, tmp_path):
    import keras

    inputs = keras.Input((5,))
    layer = layers.Sort(0.5, learnable_tau=True)
    model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x = X.astype("float32")
    # Batches of two, and of the one that is left.
    model.fit(x, x[:, :1], batch_size=2, epochs=1, verbose=0)
    tau = float(layer.tau)
    assert tau > 0
    assert abs(tau - 0.5) > 1e-4
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert float(again.layers[1].tau) == tau
    assert_close(again(x), model(x).numpy(), VALUES)


def test_the_gradient_of_a_layer_with_an_unknown_batch(layers):
    """Ties included: tf.vectorized_map drops custom gradients."""
    layer = layers.Sort(0.5, learnable_tau=True, dtype="float64")

    @tf.function(input_signature=[tf.TensorSpec((None, 5), dtype="float64")])
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x) * KEYS)
        return tape.gradient(loss, [x, layer.log_tau.value])

    tau = layer.tau.numpy()
    expected = so.vjp(so.sort, TIED, np.asarray(tau, "float64"))[1](KEYS)
    found = [tf.convert_to_tensor(gradient) for gradient in run(tf.constant(TIED))]
    assert_close(found[0], expected[0], GRADIENTS)
    # As log_tau: d / d log tau = tau d / d tau.
    assert_close(found[1], tau * expected[1], GRADIENTS)


def test_layers_describe_themselves(layers):
    for layer in (
        layers.Rank(so.SoftSort(0.3, "square"), descending=True, name="one"),
        layers.TopK(3, so.NeuralSort(0.2), as_mask=True),
        layers.KNN(2, num_classes=3, learnable_tau=True),
    ):
        config = layer.get_config()
        assert type(layer).from_config(config).get_config() == config
    assert config["learnable_tau"]
    for how in (METRIC, so.SoftSort(tf.constant(0.1))):
        with pytest.raises(ValueError, match="is saved with numbers and names alone"):
            layers.Sort(how).get_config()
    with pytest.raises(ValueError, match="learnable_tau=True needs a number"):
        layers.Sort(so.NeuralSort(0.1), learnable_tau=True)


def test_a_layer_cannot_order_an_unknown_number_of_items(layers):
    for dim, shape in ((0, (None, 5)), (-1, (2, None))):
        run = tf.function(layers.Sort(0.1, dim=dim), input_signature=[tf.TensorSpec(shape)])
        with pytest.raises(ValueError, match="must be known when a graph is traced"):
            run(tf.constant(X[:2], dtype="float32"))


def test_layers_need_the_backend_of_tensorflow(layers, monkeypatch):
    import importlib

    import keras

    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ImportError, match="need Keras with the backend tensorflow; got jax"):
        importlib.reload(layers)
