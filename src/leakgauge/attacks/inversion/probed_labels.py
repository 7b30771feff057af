r"""Label counts for any loss and any last layer, from the gradients that each label causes.

The formulas of :mod:`leakgauge.attacks.inversion.label_counts` need cross-entropy after a trained linear layer. A loss
of the user's own and a frozen last layer have no such formula. However, the gradient :math:`g` of a batch is the mean
of the gradients of its samples. Near the end of a network, the gradient of a sample depends on its label more than on
its input. Let :math:`g_c` be the mean gradient of random dummy inputs with the label :math:`c`. The counts are then
proportional to the solution of

.. math:: \min_{\lambda \ge 0} \; \Big\lVert g - \sum_c \lambda_c\, g_c \Big\rVert^2

for the parameters of the last trained layer. An update after several local steps takes the place of :math:`g`. We know
of no earlier description of this estimate. The sign rule of iDLG (Zhao et al. 2020) is a special case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from leakgauge.attacks.inversion.label_counts import (
    Place,
    dummies_at_a_time,
    estimate_label_counts,
    number_of_dummies,
    round_counts,
)
from leakgauge.attacks.inversion.last_layer import Part, last_layer
from leakgauge.attacks.inversion.layers import layers_of_model
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.observation import Observation
from leakgauge.federation.training import Trainer

#: The number of dummy inputs for each class, and the largest number for all classes together.
DUMMIES, MOST_DUMMIES = 32, 2000
#: The largest number of entries of the gradient that are compared.
ENTRIES = 4096


def infer_label_counts(
    observation: Observation,
    generator: torch.Generator,
    *,
    at: Place = "interpolated",
    read: Part | None = None,
    dummies: int | None = None,
) -> Tensor:
    """Estimate label counts from the last layer if its formula applies, and otherwise from the gradients of dummies.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        generator: The random generator for the dummy inputs.
        at: The weights at which the formula evaluates dummy inputs (:func:`.estimate_label_counts`).
        read: The part of the last layer that the formula uses. If it is given, only the formula is used.
        dummies: The number of dummy inputs of the formula. By default, that of :func:`.number_of_dummies`.
    """
    if read is None and observation.data.classes is not None and not has_formula(observation):
        return probed_label_counts(observation, generator)
    return estimate_label_counts(observation, generator, at=at, read=read, dummies=dummies)


def has_formula(observation: Observation, read: Part | None = None) -> bool:
    """Return whether the loss and the last layer allow the formula for label counts.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        read: The part of the last layer that the formula uses. By default, any.
    """
    try:
        last_layer(observation, read)
    except MissingKnowledge:
        return False
    return True


def probed_label_counts(observation: Observation, generator: torch.Generator) -> Tensor:
    """Estimate the number of samples of each class from the gradients that dummy inputs of each class cause.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        generator: The random generator for the dummy inputs.

    Raises:
        MissingKnowledge: If the loss cannot be computed for integer labels.
    """
    from scipy.optimize import nnls

    samples, classes = int(observation.training.need("samples")), int(observation.data.classes or 0)
    names = _read_names(Trainer(observation.model, observation.training, as_attacker=True))
    seen = _entries(observation.difference(), names)
    chosen = torch.randperm(len(seen), generator=generator)[:ENTRIES].to(seen.device)
    try:
        causes = [gradient[chosen] for gradient in gradients_of_classes(observation, range(classes), generator)]
    except Exception as problem:  # the loss is the user's own
        raise MissingKnowledge(
            "labels cannot be inferred, because the loss fails for random samples. "
            'Grant them ([attacker] granted = ["labels"] in TOML, observation.knowing(labels=...) in Python)'
        ) from problem
    matrix = torch.stack(causes, 1).nan_to_num().cpu().numpy()
    shares = torch.from_numpy(nnls(matrix, seen[chosen].nan_to_num().cpu().numpy())[0])
    total = float(shares.sum())
    return round_counts(samples * (shares / total if total > 0 else torch.full_like(shares, 1 / classes)), samples)


def gradients_of_classes(
    observation: Observation, labels: Iterable[int], generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield the mean gradient of the last layer that random dummy inputs with each label cause.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        labels: The labels. All of them get the same dummy inputs.
        generator: The random generator for the dummy inputs.
    """
    trainer = Trainer(observation.model, observation.training, as_attacker=True)
    names = _read_names(trainer)
    like = next(iter(observation.sent.values()))
    count = probes_of_a_class(observation.data.shape, int(observation.data.classes or 1))
    inputs = torch.randn(count, *observation.data.shape, generator=generator).to(like.device, like.dtype)
    with trainer.active():
        state = trainer.start(observation.sent, observation.model_buffers())
        for label in labels:
            targets = torch.full((count,), label, device=like.device)
            yield _entries(trainer.gradient(state, (inputs, targets), graph=False)[0], names)


def _read_names(trainer: Trainer) -> tuple[str, ...]:
    """Return the names of the parameters of the last trained layer."""
    return layers_of_model(trainer.model, trainer.trainable)[-1].parameters


def probes_of_a_class(shape: Sequence[int], classes: int) -> int:
    """Return the number of dummy inputs whose gradient stands for the samples of one class.

    Args:
        shape: The shape of a sample.
        classes: The number of classes.
    """
    most = min(MOST_DUMMIES, 2 * number_of_dummies(shape))
    return max(2, min(DUMMIES, dummies_at_a_time(shape), most // classes))


def _entries(gradient: dict[str, Tensor], names: tuple[str, ...]) -> Tensor:
    return torch.cat([gradient[name].detach().double().flatten() for name in names])
