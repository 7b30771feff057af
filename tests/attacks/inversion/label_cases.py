"""Clients whose labels are inferred, and the errors of an estimate."""

from dataclasses import replace

from leakgauge import models
from leakgauge.attacks.inversion.label_counts import estimate_label_counts
from leakgauge.core.seeding import generator
from tests.shared import digits


def network(**options):
    return models.lenet(shape=(1, 8, 8), classes=10, **({"seed": 0} | options))


def cnn(seed=0):
    return models.build("dlf_femnist", shape=(1, 8, 8), classes=10, channels=[8, 16], dense=32, seed=seed)


def normalised(rows):
    return replace(digits(), spec=replace(digits().spec, mean=(0.305,), std=(0.376,))).share(rows)


def estimate(observation):
    return estimate_label_counts(observation, generator(0, "labels"))


def half_the_errors(counts, truth):
    return int((counts - truth.label_counts).abs().sum()) // 2
