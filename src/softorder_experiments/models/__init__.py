"""The networks of the paper."""

from softorder_experiments.models.autoencoders import (
    AutoEncoder,
    ConvolutionalAutoEncoder,
    DenseAutoEncoder,
)
from softorder_experiments.models.digits import (
    INITIALIZATIONS,
    DigitNetwork,
    MedianNetwork,
    centre,
    he_normal,
    truncated_normal,
)
from softorder_experiments.models.embeddings import EMBEDDINGS, ConvolutionalEmbedding, ResNet18

__all__ = [
    "EMBEDDINGS",
    "INITIALIZATIONS",
    "AutoEncoder",
    "ConvolutionalAutoEncoder",
    "ConvolutionalEmbedding",
    "DenseAutoEncoder",
    "DigitNetwork",
    "MedianNetwork",
    "ResNet18",
    "centre",
    "he_normal",
    "truncated_normal",
]
