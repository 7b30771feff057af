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

import torch
from torch import Tensor

from leakgauge.attacks.inversion.label_counts import Place, estimate_label_counts, round_counts
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
    dummies: int = 1000,
) -> Tensor:
    """Estimate label counts from the last layer if its formula applies, and otherwise from the gradients of dummies.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        generator: The random generator for the dummy inputs.
        at: The weights at which the formula evaluates dummy inputs (:func:`.estimate_label_counts`).
        read: The part of the last layer that the formula uses. If it is given, only the formula is used.
        dummies: The number of dummy inputs of the formula.
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
    trainer = Trainer(observation.model, observation.training, as_attacker=True)
    names = layers_of_model(observation.model, trainer.trainable)[-1].parameters
    seen = _entries(observation.difference(), names)
    chosen = torch.randperm(len(seen), generator=generator)[:ENTRIES].to(seen.device)
    like = next(iter(observation.sent.values()))
    count = max(2, min(DUMMIES, MOST_DUMMIES // classes))
    inputs = torch.randn(count, *observation.data.shape, generator=generator).to(like.device, like.dtype)
    causes = []
    try:
        with trainer.active():
            state = trainer.start(observation.sent, observation.model_buffers())
            for label in range(classes):
                targets = torch.full((count,), label, device=like.device)
                gradient, _ = trainer.gradient(state, (inputs, targets), graph=False)
                causes.append(_entries(gradient, names)[chosen])
    except Exception as problem:  # the loss is the user's own
        raise MissingKnowledge(
            "labels cannot be inferred, because the loss fails for random samples. "
            'Grant them ([attacker] granted = ["labels"] in TOML, observation.knowing(labels=...) in Python)'
        ) from problem
    matrix = torch.stack(causes, 1).nan_to_num().cpu().numpy()
    shares = torch.from_numpy(nnls(matrix, seen[chosen].nan_to_num().cpu().numpy())[0])
    total = float(shares.sum())
    return round_counts(samples * (shares / total if total > 0 else torch.full_like(shares, 1 / classes)), samples)


def _entries(gradient: dict[str, Tensor], names: tuple[str, ...]) -> Tensor:
    return torch.cat([gradient[name].detach().double().flatten() for name in names])
