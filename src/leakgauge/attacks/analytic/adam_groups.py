r"""The samples of a batch, from groups of neurons that are active for one sample only, after one step of Adam.

Before ReLU, a neuron may be active for a single sample of a batch. Its weights then change as if the client had this
sample only. All such neurons of one sample have the same zeros and, up to their own sign, the same signs. Neurons that
are active for several samples may also agree in their signs, but the sizes of their changes fit no product
:math:`r_k y_j` (:mod:`.adam_layer`). A group is therefore read only if it fits a product up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.analytic.adam_layer import Fitted, Rows, fit_one_step
from leakgauge.attacks.analytic.dense import DenseChain

#: The smallest number of neurons in a group.
FEWEST = 3
#: The largest mean squared residual of a group that holds one sample, in units of rounding errors.
PURE = 1.5
#: The largest estimated relative error of a sample. With larger errors, a mixture of samples would look like one.
CLEAR = 0.15
#: The largest relative difference between the gradients of a group and those of the known network.
CONFIRMED = 0.5


@dataclass(frozen=True, eq=False)
class Group:
    """A group of neurons that are active for one sample only.

    Args:
        neurons: The indices of the neurons.
        fitted: The inputs of the layer for this sample.
    """

    neurons: Tensor
    fitted: Fitted


def pure_groups(rows: Rows) -> list[Group]:
    """Return the groups of neurons that hold one sample each, the most exact sample first.

    Args:
        rows: The update of the layer after one step on a batch.
    """
    patterns = (rows.updates * rows.updates[:, -1:].sign()).sign().to(torch.int8)
    changed = torch.nonzero(rows.changed_neurons()).flatten()
    if not len(changed):
        return []
    _, member = torch.unique(patterns[changed], dim=0, return_inverse=True)
    groups = []
    for index in range(int(member.max()) + 1):
        neurons = changed[member == index]
        if len(neurons) < FEWEST:
            continue
        fitted = fit_one_step(Rows(rows.updates[neurons], rows.noise[neurons]))
        if fitted.misfit < PURE and fitted.relative_error < CLEAR:
            groups.append(Group(neurons, fitted))
    return sorted(groups, key=lambda group: group.fitted.relative_error)


def labels_of(groups: list[Group], chain: DenseChain, classes: int) -> Tensor | None:
    """Return the label of each group's sample, or ``None`` if the known network does not confirm all labels.

    With the right label, the gradients of the group's neurons are those of the known network, up to a factor.

    Args:
        groups: The groups of neurons.
        chain: The layers of the known network.
        classes: The number of classes.
    """
    labels = []
    for group in groups:
        point = chain.with_ones(group.fitted.values[None], chain.first)
        outputs = (point @ chain.augmented_weight().T).expand(classes, -1)
        (gradients,) = chain.gradients(outputs, torch.arange(classes, device=outputs.device))
        expected = torch.nn.functional.normalize(gradients[:, group.neurons], dim=1)
        observed = torch.nn.functional.normalize(group.fitted.neurons, dim=0)
        differences = (expected - observed).norm(dim=1)
        if not float(differences.min()) < CONFIRMED:
            return None
        labels.append(int(differences.argmin()))
    return torch.tensor(labels, device=chain.device)
