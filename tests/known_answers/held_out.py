"""Set-ups that no attack and no setting was chosen on. They are run once, at the end."""

from tests.known_answers.known_answer import DATA, NO_SAMPLES, KnownAnswer, gradient, network, population, weights
from tests.known_answers.table import COSINE, COUNTING, READ_OFF, SPANS

BLOBS = population("blobs")

HELD_OUT = (
    KnownAnswer("softplus MLP of widths 97 and 53, one gradient of 6",
                network("dense", hidden=[97, 53], activation="softplus"), gradient(6), DATA, SPANS),
    KnownAnswer("sine MLP of width 150, one gradient of 3", network("dense", hidden=[150, 70], activation="sine"),
                gradient(3), DATA, SPANS),
    KnownAnswer("leaky ReLU MLP with three hidden layers, one gradient of 10",
                network("dense", hidden=[111, 77, 33], activation="leaky_relu"), gradient(10), DATA, SPANS),
    KnownAnswer("residual MLP with layer norm, one gradient of 1", network("residual_dense"), gradient(1), DATA,
                READ_OFF),
    KnownAnswer("residual MLP with layer norm, one gradient of 5", network("residual_dense"), gradient(5), DATA,
                "The samples lie in the span of the first layer's gradient, and matching is smooth."),
    KnownAnswer("depthwise CNN, one gradient of 1", network("depthwise"), gradient(1), DATA, COSINE),
    KnownAnswer("transposed input layout, MLP, one gradient of 4", network("channels_last"), gradient(4), DATA, SPANS,
                BLOBS),
    KnownAnswer("pictures of 20 x 12 with 2 channels and 3 classes, ELU CNN, one gradient of 1",
                network("convolutional", activation="elu"), gradient(1), DATA, COSINE, BLOBS),
    KnownAnswer("pictures of 20 x 12 with 2 channels, MLP, 3 epochs of batches of 1 on 2",
                network("dense", hidden=[200, 60]), weights(2, 3, 1), DATA,
                "Neurons that fire for one sample only are copies of it.", BLOBS),
    KnownAnswer("one-dimensional convolutions on series, one gradient of 1", network("series"), gradient(1), DATA,
                "L-BFGS on the gradient of a smooth small network.", population("waves")),
    KnownAnswer("series, MLP, one gradient of 4", network("dense", hidden=[120, 60], activation="silu"), gradient(4),
                DATA, SPANS, population("waves")),
    KnownAnswer("word counts, MLP, one gradient of 6", network("dense", hidden=[90, 40]), gradient(6), DATA, SPANS,
                population("word_counts")),
    KnownAnswer("MLP with dropout, one gradient of 1", network("dropped_out"), gradient(1), DATA, READ_OFF),
    KnownAnswer("one hidden layer of 5, batch of 200, word counts",
                network("dense", hidden=[5], activation="silu"), gradient(200), NO_SAMPLES, COUNTING,
                population("word_counts")),
)  # fmt: skip
