r"""The attack read-off, which computes samples from the gradients of single neurons of a dense first layer.

The gradient of neuron :math:`k` of a dense layer with a bias is
:math:`\partial W_k = \frac1N \sum_i \delta_{ik} x_i` and :math:`\partial b_k = \frac1N \sum_i \delta_{ik}`. If
the client has one sample, this sample is therefore

.. math:: x = \partial W_k / \partial b_k

for any neuron (Phong et al. 2017). In a batch, a neuron before ReLU may be active for only one of the samples. The
ratio :math:`\partial W_k / \partial b_k` of this neuron is then this one sample. Fowl et al. 2022 and Boenisch et al.
2023 plant such neurons in the model. This attack does not change the model. Two neurons that are active for the same
single sample have the same ratio.

Neurons that are active for the same group of samples may also have the same ratio. This ratio is then a mixture of the
samples in the group. A ratio is therefore returned only if the known network proves that it is no mixture
(:mod:`.purity`).

The ratios stay exact over any number of local steps of SGD, also with momentum, because each step adds a multiple of
the same sample. With weight decay or adaptive optimisers, the ratios are not exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakgauge.attacks.analytic.dense import DenseChain, DoesNotFit, augmented, one_gradient_of
from leakgauge.attacks.analytic.layer_span import rank_of
from leakgauge.attacks.analytic.purity import Purity
from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.inversion.stopping import Kind, Outcome
from leakgauge.attacks.spec import AttackSpec, Cost, Fit
from leakgauge.core.checks import positive
from leakgauge.core.observation import Observation
from leakgauge.core.one_gradient import mixes_linearly, why_no_gradient
from leakgauge.core.progress import Report

#: Ratios agree when they differ by less than this many rounding errors.
ROUNDINGS = 16.0
#: The gradients of a sample's neurons agree with those of the known network up to this many rounding errors.
PROOF_ROUNDINGS = 1024.0
#: The factor by which the proof of copies must be better, because means of similar samples are nearly like copies.
COPIED = 10.0
#: Neurons with a larger relative rounding error than this are not read.
ROUGHEST = 1e-3
#: The number of neurons that must agree where the known network cannot confirm a sample.
UNCONFIRMED = 3
#: The largest estimated relative error of a single sample that is returned, as in slightly noisy updates.
NOISIEST = 0.3
#: The losses for which the known network can confirm a sample of a class.
CONFIRMED_LOSSES = ("cross_entropy", "binary_cross_entropy")


@dataclass(frozen=True)
class DenseReadOff(Attack):
    """The attack that reads samples from single neurons. See :func:`dense_read_off` for the arguments."""

    uses_defences: ClassVar[bool] = False

    tolerance: float = 0.02

    def __post_init__(self) -> None:
        positive("tolerance", self.tolerance, up_to=0.5)

    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Return the samples that can be read from single neurons.

        Args:
            observation: The message of the client.
            seed: Not used, because the attack is deterministic.
            report: Not used, because the attack takes only a moment.
        """
        message = _Message(observation)
        if message.samples == 1:
            inputs, labels, outcome = self._one_sample(message)
        else:
            inputs, labels, outcome = self._several_samples(message)
        dtype = next(iter(observation.sent.values())).dtype
        samples = message.chain.samples(inputs, observation.data).to(dtype)
        return Reconstruction(samples, labels, outcome)

    def _one_sample(self, message: _Message) -> tuple[Tensor, Tensor | None, Outcome]:
        sample, error = regression(message.rows)
        if not error < NOISIEST:
            words = "nothing could be read off, because the neurons do not agree on one sample, as in noisy updates"
            return sample[None][:0], message.no_labels(), Outcome("finished", 0, words)
        labels = message.one_label(sample[None], self.tolerance)
        if error < ROUGHEST:
            return sample[None], labels, Outcome("converged", 0, "1 of 1 samples read off exactly")
        words = f"1 of 1 samples read off, with an estimated relative error of {error:.2g}"
        return sample[None], labels, Outcome("finished", 0, words)

    def _several_samples(self, message: _Message) -> tuple[Tensor, Tensor | None, Outcome]:
        groups = _agreeing(message, 2 if message.confirms else UNCONFIRMED)
        inputs = [regression(message.rows[group])[0] for group in groups]
        found = torch.stack(inputs) if inputs else message.rows[:0, :-1]
        labels, copies = message.no_labels(), torch.ones(len(found), dtype=torch.long, device=found.device)
        if message.confirms and inputs:
            labels, errors, copies = message.best_labels(found, groups)
            errors = torch.where(copies > 1, COPIED * errors, errors)
            proven = (errors < message.limits(groups, self.tolerance)) & (
                message.mixture_errors(found, labels, copies) < self.tolerance
            )
            found, labels, copies = found[proven], labels[proven], copies[proven]
        elif inputs:
            found = found[message.alone(found)]
            copies = copies[: len(found)]
        found = found.repeat_interleave(copies, 0)[: message.samples]
        labels = None if labels is None else labels.repeat_interleave(copies, 0)[: message.samples]
        blur = max((ROUNDINGS * float(message.rounding[group].amin()) for group in groups), default=0.0)
        return found, labels, message.outcome(len(found), blur)


class _Message:
    """The gradient of the first dense layer, with one row for each neuron, and other facts about the message."""

    def __init__(self, observation: Observation) -> None:
        self.chain = _chain(observation)
        training, data = observation.training, observation.data
        self.device, self.classes = observation.device, data.classes
        scaled = why_no_gradient(observation) is None
        self.rows = augmented(update_of(observation, scaled), self.chain.first)
        dtype = next(iter(observation.sent.values())).dtype
        self.rounding = _rounding(observation, self.rows, self.chain, torch.finfo(dtype).eps)
        self.samples = training.samples
        self.precision = torch.finfo(dtype).eps
        if self.samples is None and observation.kind == "gradient":
            self.samples = rank_of(self.rows, self.precision / 2)
        sent = self.chain.augmented_weight()
        # A neuron that is silent before and after local training was probably silent in all steps.
        step = augmented(update_of(observation, False), self.chain.first)
        self.weights = [sent] if observation.kind == "gradient" else [sent, sent - step]
        self.purity = Purity(self.rows, self.precision / 2, self.samples)
        self.confirms = (
            scaled and data.classes is not None and training.loss in CONFIRMED_LOSSES and self.samples is not None
        )

    def no_labels(self) -> Tensor | None:
        """Return an empty tensor of labels, or ``None`` if the attack cannot find labels."""
        return torch.zeros(0, dtype=torch.long, device=self.device) if self.confirms else None

    def one_label(self, inputs: Tensor, tolerance: float) -> Tensor | None:
        """Return the label of a client's only sample, or ``None`` if the known network confirms no label.

        Args:
            inputs: The sample, as the input of the first dense layer.
            tolerance: The largest relative error of the gradient with this label.
        """
        try:
            label, error, _ = self.best_labels(inputs, [torch.arange(len(self.rows))])
        except (RuntimeError, ValueError):  # such as batch norm in training, which refuses a single sample
            return None
        return label if self.confirms and bool(error[0] < tolerance) else None

    def outcome(self, count: int, blur: float) -> Outcome:
        """Return how the attack ended.

        Without the proof that no sample is a mixture, the outcome is never ``converged``.

        Args:
            count: The number of samples that were read off.
            blur: The largest relative error that rounding of the message may cause in a sample.
        """
        total = self.samples or "an unknown number of"
        if not count:
            return Outcome("finished", 0, f"none of {total} samples could be read off")
        if not self.purity.separates:
            words = f"{count} of {total} samples read off, without a proof, because the gradient has its full rank"
            return Outcome("finished", 0, words)
        if blur > ROUGHEST:
            words = f"{count} of {total} samples read off, with an estimated relative error of up to {blur:.1g}"
            return Outcome("finished", 0, words)
        kind: Kind = "converged" if count == self.samples else "finished"
        return Outcome(kind, 0, f"{count} of {total} samples read off exactly")

    def limits(self, groups: list[Tensor], tolerance: float) -> Tensor:
        """Return, for each group of neurons, the largest error that rounding may cause in :meth:`best_labels`.

        Args:
            groups: For each sample, the indices of the neurons from which the sample was computed.
            tolerance: The value that replaces all larger results.
        """
        least = PROOF_ROUNDINGS * self.precision
        limits = torch.stack([ROUNDINGS * self.rounding[group].amax() for group in groups]).clamp_min(least)
        return limits.clamp_max(tolerance if self.purity.separates else least)

    def mixture_errors(self, inputs: Tensor, labels: Tensor, copies: Tensor) -> Tensor:
        """Return an error for each input, which is near 0 if the input is a single sample.

        A mixture, which is a weighted mean of several samples, usually has a larger error. The errors are zeros if the
        message does not allow such a check.

        Args:
            inputs: The inputs of the first dense layer.
            labels: The label of each sample.
            copies: For each input, the number of times that this sample occurs among the client's samples.
        """
        if not self.purity.separates:
            return torch.zeros_like(inputs[:, 0])
        points = self.chain.with_ones(inputs, self.chain.first)
        (gradients,) = self.chain.gradients(points @ self.chain.augmented_weight().T, labels)
        return self.purity.errors(gradients, points, copies)

    def alone(self, inputs: Tensor) -> Tensor:
        """Return, for each input of the first dense layer, whether it is proven to be one sample and not a mixture.

        This proof does not need the labels.

        Args:
            inputs: The inputs of the first dense layer.
        """
        points = self.chain.with_ones(inputs, self.chain.first)
        silent = torch.ones(len(points), len(self.rows), dtype=torch.bool, device=self.device)
        for weight in self.weights:
            silent &= self.chain.silent(points @ weight.T)
        return self.purity.alone(points, silent)

    def best_labels(self, inputs: Tensor, groups: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the best label of each sample, the relative error with this label, and a number of copies.

        The number of copies is the estimated number of times that the sample occurs among the client's samples.

        Args:
            inputs: The inputs of the first dense layer.
            groups: For each sample, the indices of the neurons from which the sample was computed.
        """
        assert self.classes is not None or not self.confirms
        labels = torch.zeros(len(inputs), dtype=torch.long, device=self.device)
        errors = torch.full((len(inputs),), torch.inf, dtype=torch.double, device=self.device)
        copies = torch.ones_like(labels)
        if not self.confirms:
            return labels, errors, copies
        outputs = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1) @ self.chain.augmented_weight().T
        for label in range(self.classes or 0):
            (gradients,) = self.chain.gradients(outputs, torch.full_like(labels, label))
            for index, group in enumerate(groups):
                expected, observed = gradients[index, group], self.rows[group, -1] * (self.samples or 1)
                count = float(expected @ observed / expected.square().sum().clamp_min(1e-300))
                count = max(1, min(round(count), self.purity.most_copies))
                error = float((observed - count * expected).norm() / observed.norm())
                if error < float(errors[index]):
                    labels[index], errors[index], copies[index] = label, error, count
        return labels, errors, copies


def update_of(observation: Observation, scaled: bool | None = None) -> dict[str, Tensor]:
    """Return the gradient of one step, or else the sent weights minus the returned weights.

    Args:
        observation: The message of the client.
        scaled: Whether the gradient is returned. By default, it is returned if the message shows it.
    """
    if scaled or (scaled is None and why_no_gradient(observation) is None):
        return one_gradient_of(observation)
    if observation.returned is None:  # a gradient that was clipped
        return {name: value.double() for name, value in observation.difference().items()}
    return {name: value.double() - observation.returned[name].double() for name, value in observation.sent.items()}


def _rounding(observation: Observation, rows: Tensor, chain: DenseChain, eps: float) -> Tensor:
    """Return the relative rounding error of each neuron's ratio.

    The ratio is the gradient of the neuron's weights divided by the gradient of its bias. The error is larger if the
    client returns weights instead of a gradient. Weights are rounded in proportion to their own size, and the update
    may be much smaller than the weights.
    """
    error = torch.full_like(rows[:, 0], eps)
    if observation.kind == "weights":
        returned = chain.augmented_weight()
        step = augmented(update_of(observation, False), chain.first)
        error = error * (1 + returned.norm(dim=1) / step.norm(dim=1) + (returned[:, -1] / step[:, -1]).abs())
    return error.nan_to_num(torch.inf, torch.inf)


def regression(rows: Tensor) -> tuple[Tensor, float]:
    """Return the least-squares solution x of ``dW = db x`` over all given neurons, and its estimated relative error.

    ``dW`` and ``db`` are the gradients of a neuron's weights and bias.

    Args:
        rows: The gradients of the neurons, one row for each, with the gradient of the bias as the last column.
    """
    kernel, bias = rows[:, :-1], rows[:, -1]
    power = bias.square().sum().clamp_min(1e-300)
    sample = bias @ kernel / power
    spread = (kernel - bias[:, None] * sample).square().sum() / max(1, len(rows) - 1)
    return sample, float((spread / power).sqrt() / sample.norm().clamp_min(1e-300))


def _agreeing(message: _Message, least: int) -> list[Tensor]:
    """Return groups of neurons that have the same ratio, the largest group first.

    The ratio is the gradient of a neuron's weights divided by the gradient of its bias.

    Args:
        message: The gradient of the first dense layer.
        least: The smallest size of a group.
    """
    rows, rounding = message.rows, message.rounding
    bias = rows[:, -1].abs()
    usable = torch.nonzero((bias > 1e-6 * bias.max()) & (rounding < ROUGHEST)).flatten()
    ratios = rows[usable] / rows[usable, -1:]
    size = ratios.norm(dim=1)
    limit = ROUNDINGS * (rounding[usable][:, None] + rounding[usable]) * torch.minimum(size[:, None], size)
    agree = torch.cdist(ratios, ratios) <= limit
    agree.fill_diagonal_(True)
    groups = []
    while len(usable) and int((counts := agree.sum(1)).max()) >= least:
        members = agree[int(counts.argmax())].clone()
        groups.append(usable[members])
        agree[members] = False
        agree[:, members] = False
    return groups


def check_survives(observation: Observation) -> None:
    """Raise :class:`.DoesNotFit` if local training hides the ratios of a neuron's gradients.

    Args:
        observation: The message of the client.
    """
    training = observation.training
    if not mixes_linearly(observation):
        raise DoesNotFit("a neuron's gradients have a ratio that survives SGD, and this client uses Adam")
    if observation.kind == "weights" and training.weight_decay is None:
        raise DoesNotFit("needs the client's weight decay, which is unknown")
    if observation.kind == "weights" and training.weight_decay != 0 and why_no_gradient(observation) is not None:
        raise DoesNotFit("weight decay over several local steps hides the ratios of a neuron's gradients")


def _chain(observation: Observation) -> DenseChain:
    """Return the :class:`.DenseChain` of the model, or raise an error if the attack does not apply."""
    check_survives(observation)
    chain = DenseChain(observation)
    if observation.training.samples != 1:  # layers after the first one cannot change the ratios of a single sample
        chain.check_rows()
    return chain


def fits(observation: Observation) -> Fit:
    """Decide whether the attack applies. The samples must enter a dense layer with a bias.

    If the client has several samples, an activation such as ReLU must also make some neurons silent.

    Args:
        observation: The message of the client.
    """
    try:
        chain = _chain(observation)
        if observation.training.samples == 1:
            return Fit(True, "the sample enters a dense layer with a bias, whose gradient is a copy of it")
        if not chain.has_silent_neurons():
            return Fit(False, "every neuron of the first dense layer is active for all samples, so none holds only one")
    except DoesNotFit as reason:
        return Fit(False, str(reason))
    return Fit(True, "samples enter a dense layer, and neurons that are active for one sample only are copies of it")


def dense_read_off(*, tolerance: float = 0.02) -> DenseReadOff:
    """Read samples off single neurons of a dense first layer, by dividing two gradients.

    The gradient of a neuron's weights is divided by the gradient of its bias. A client's only sample is returned
    exactly, also after several local steps of SGD. If there are several samples, a sample is returned if at least two
    neurons before ReLU are active for this sample and for no other. If the message is one gradient, the known network
    confirms each returned sample and gives its label. After several local steps, three neurons must agree, and there
    are no labels.

    Args:
        tolerance: The largest relative error of a returned sample. The error compares observed gradients with the
            gradients that the known network gives for the sample, at the neurons from which the sample was computed.
    """
    return DenseReadOff(tolerance)


SPECS = (
    AttackSpec(
        name="dense_read_off",
        factory=dense_read_off,
        summary="Read-off (Phong et al. 2017; Fowl et al. 2022): single neurons of a dense first layer hold samples.",
        fits=fits,
        cost=Cost.INSTANT,
        rank=10,
        audit={},
        exact=True,
    ),
)
