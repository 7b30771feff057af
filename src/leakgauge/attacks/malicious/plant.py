"""The weights that a malicious server prepares, from samples of its own and without any client's data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from leakgauge.attacks.malicious.layout import Layout, features_of, filled, layout_of
from leakgauge.attacks.malicious.passing import pass_on
from leakgauge.attacks.malicious.prediction import Split, batched_share, best_split, clean_share, peeled_share
from leakgauge.attacks.malicious.trap_rows import Rows, half_negative_rows, threshold_rows
from leakgauge.core.checks import positive
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import UnknownName
from leakgauge.core.likely_samples import likely_samples
from leakgauge.core.local_training import LocalTraining
from leakgauge.core.params import Params, buffers_of, parameters_of
from leakgauge.core.seeding import derive, generator

Kind = Literal["thresholds", "half_negative"]
KINDS = ("thresholds", "half_negative")
#: The number of the server's samples with which it tries whether a model passes samples on.
PROBES = 64
#: The number of samples of a client if the server does not know it.
USUAL = 32
#: The number of samples that the server draws if it has none.
DRAWN = 2000
#: The mean output of a trap above its threshold, in standard deviations of the samples along its direction.
MEAN_OUTPUT = 0.6
#: The spread of the strengths of the classes around 1. Two samples in one trap never have the strength of one.
SPREAD = 0.3
#: The bias of the first output, if it is to win for all samples, beyond the logarithm of the number of outputs.
WINNING = 4.0
#: The same for a client with several batches, between which the outputs move. Samples of the first class are then lost.
SURE = 14.0


@dataclass(frozen=True)
class Scale:
    """The sizes of the planted weights.

    Args:
        signal: The length of the columns of the next layer, which multiplies the gradients of the traps.
        outputs: By how much all traps together change the next layer's outputs.
        features: The factor of the features that the traps see, where there are convolutions before them. Small
            features keep the thresholds where they are over several local steps.
    """

    signal: float = 1e5
    outputs: float = 0.05
    features: float = 1.0

    def __post_init__(self) -> None:
        positive("the signal of traps", self.signal)
        positive("the outputs of traps", self.outputs)


@dataclass(frozen=True)
class Trapped:
    """The weights of a malicious server, and what it expects of them.

    Args:
        weights: The weights that it sends, by name.
        kind: The kind of the traps.
        traps: The number of traps.
        split: How they are split among directions.
        formula: The share of samples that are alone in a trap of one direction, (1 - 1/K)^(B-1).
        expected: The share of samples that peeling is expected to return.
        passed: How the sample reaches the traps, in words.
        changed: The paths of the layers whose weights were changed.
    """

    weights: Params
    kind: Kind
    traps: int
    split: Split
    formula: float
    expected: float
    passed: str
    changed: tuple[str, ...]

    def load_into(self, model: nn.Module) -> nn.Module:
        """Copy the planted weights into ``model``, and return ``model``."""
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.copy_(self.weights[name])
        return model


def plant(
    model: nn.Module,
    data: DataSpec,
    training: LocalTraining | None = None,
    *,
    kind: Kind = "thresholds",
    public: Tensor | None = None,
    split: Split | None = None,
    scale: Scale | None = None,
    seed: int = 0,
) -> Trapped:
    """Prepare weights with traps for an architecture, as a malicious server does.

    Use this only to audit a federation that is your own. If the architecture has no place for traps,
    :class:`~leakgauge.attacks.analytic.dense.DoesNotFit` is raised with the reason.

    Args:
        model: The honest model. It is not changed.
        data: The description of the clients' samples.
        training: The settings of the clients' training, as far as the server knows them. ``samples`` is the number of
            samples whose gradients the server gets in one sum.
        kind: ``"thresholds"`` (Fowl et al. 2022) or ``"half_negative"`` (Boenisch et al. 2023).
        public: Samples of the same kind that the server has, in their own units. By default, it draws random ones.
        split: How the thresholds are split among directions. By default, as returns the most samples.
        scale: The sizes of the planted weights.
        seed: The seed of the server's draws.
    """
    if kind not in KINDS:
        raise UnknownName("kind of traps", kind, KINDS)
    training, scale = training or LocalTraining(), scale or Scale()
    honest = parameters_of(model)
    work = filled(model, honest, buffers_of(model), training.mode, torch.float32)
    layout = layout_of(work, data.shape)
    own = likely_samples(data, DRAWN, derive(seed, "likely samples")) if public is None else public
    with torch.no_grad():
        features, passed = _features(work, layout, data.normalise(own.to(next(work.parameters()))), scale)
        dense = work.get_submodule(layout.dense)
        assert isinstance(dense, nn.Linear)
        traps, samples, draw = dense.out_features, training.samples or USUAL, generator(seed, "traps")
        batch = (training.batch_size or samples) if several_batches(training) else None
        if kind == "thresholds":
            chosen = split or best_split(traps - 1, samples, agreement=not confirms(training, data), batch=batch)
            rows = threshold_rows(features, traps, chosen, samples, draw)
            _set_equal_columns(work, layout, rows, scale, several_steps(training))
            _set_biases(work, layout, data, several_steps(training), several_batches(training))
        else:
            chosen = Split()
            _set_rows(dense, half_negative_rows(features, traps, samples, draw))
    changed = (*(stage.path for stage in layout.stages), layout.dense, layout.following)
    planted = dict(work.named_parameters())
    return Trapped(
        weights={name: planted[name].detach().to(value) for name, value in honest.items()},
        kind=kind,
        traps=traps,
        split=chosen,
        formula=clean_share(traps, samples),
        expected=_expected(kind, traps, samples, chosen, batch),
        passed=passed,
        changed=changed,
    )


def _features(model: nn.Module, layout: Layout, inputs: Tensor, scale: Scale) -> tuple[Tensor, str]:
    """Make a model pass samples on, and return what its traps see of the server's samples, and how they are passed."""
    passed = pass_on(model, layout, inputs[:PROBES])
    for stage in layout.stages[-1:]:
        for value in model.get_submodule(stage.path).parameters(recurse=False):
            value.mul_(scale.features)
    return features_of(model, layout, inputs).double(), passed


def _expected(kind: Kind, traps: int, samples: int, split: Split, batch: int | None) -> float:
    """Return the share of samples that the attack is expected to return."""
    if kind == "half_negative":
        return batched_share(traps, samples, batch or samples, 1.0)
    if batch is not None:
        return batched_share(traps - 1, samples, batch, split.load)
    return peeled_share(traps - 1, samples, split)


def confirms(training: LocalTraining, data: DataSpec) -> bool:
    """Return whether the network can confirm a sample by the strength of its trap, so that one direction is enough.

    Args:
        training: The settings of the client's training.
        data: The description of the samples.
    """
    return data.classes is not None and training.samples is not None and training.is_sgd


def several_steps(training: LocalTraining) -> bool:
    """Return whether a client takes several local steps, or may take several.

    Args:
        training: The settings of the client's training.
    """
    if training.lr is None and training.epochs is None:
        return False  # one gradient
    return None in (training.epochs, training.batch_size, training.samples) or training.steps > 1


def several_batches(training: LocalTraining) -> bool:
    """Return whether a client trains on several batches, or may do so.

    Args:
        training: The settings of the client's training.
    """
    if not several_steps(training):
        return False
    return None in (training.batch_size, training.samples) or len(training.batch_sizes) > 1


def _set_rows(dense: nn.Linear, rows: Rows) -> None:
    dense.weight.copy_(rows.weight)
    dense.bias.copy_(rows.bias)


def _set_equal_columns(model: nn.Module, layout: Layout, rows: Rows, scale: Scale, dying: bool) -> None:
    """Set the traps, and the columns of the next layer such that a sample has the same gradient at all traps."""
    dense, following = model.get_submodule(layout.dense), model.get_submodule(layout.following)
    assert isinstance(dense, nn.Linear)
    assert isinstance(following, nn.Linear)
    size = scale.outputs / (scale.signal * MEAN_OUTPUT * len(rows.weight))
    _set_rows(dense, Rows(rows.weight * size, rows.bias * size))
    column = falling_strengths(following.out_features) if dying else strengths_of_classes(following.out_features)
    following.weight.copy_(scale.signal * column.to(following.weight)[:, None].expand_as(following.weight))


def _set_biases(model: nn.Module, layout: Layout, data: DataSpec, dying: bool, batches: bool) -> None:
    """Set the biases of the layer behind the traps.

    If the layer gives the outputs and the client takes several steps, the first output wins for all samples. The
    gradients of all other classes then have the same sign, and close a trap after the first step that opens it.
    """
    following = model.get_submodule(layout.following)
    assert isinstance(following, nn.Linear)
    bias: Tensor | None = following.bias
    if bias is None:
        return
    if following.out_features != data.outputs:
        bias.fill_(1.0)  # a hidden layer stays active
    else:
        bias.zero_()
        if dying:
            bias[0] = (SURE if batches else WINNING) + math.log(following.out_features)


def falling_strengths(classes: int) -> Tensor:
    """Return one number for each class, of which the first is larger than all others.

    Args:
        classes: The number of classes.
    """
    if classes == 1:
        return torch.ones(1, dtype=torch.double)
    return torch.cat([torch.zeros(1, dtype=torch.double), -torch.linspace(1.0, 1.0 + SPREAD, classes - 1).double()])


def strengths_of_classes(classes: int) -> Tensor:
    """Return one number for each class such that no sum of two has the size of a single one.

    >>> strengths_of_classes(4)
    tensor([ 1.0000, -1.0000,  1.3000, -1.3000], dtype=torch.float64)

    Args:
        classes: The number of classes.
    """
    if classes == 1:
        return torch.ones(1, dtype=torch.double)
    sizes = torch.linspace(1.0, 1.0 + SPREAD, math.ceil(classes / 2), dtype=torch.double)
    return torch.stack([sizes, -sizes], 1).flatten()[:classes]
