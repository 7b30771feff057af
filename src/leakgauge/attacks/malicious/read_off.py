r"""The attack trap read-off, which reads samples from the traps of a malicious server.

A sample :math:`i` with the features :math:`f_i` and the gradient :math:`\delta_i` with respect to a trap's output
adds :math:`\delta_i f_i` to the gradient of the trap's weights and :math:`\delta_i` to that of its bias. The ratio of
both is the sample, if it is alone in its trap. The attacker does not know which traps hold one sample, and accepts a
ratio for one of two reasons:

- *Agreement.* Traps of two different directions have the same ratio. Mixtures of different samples do not agree.
- *Strength.* The network that the server sent gives, for the ratio and one of the labels, the gradient
  :math:`\delta` that the bias shows. This needs one gradient and the number of samples.

An accepted sample is subtracted from its traps in all directions, where it may leave another sample alone. This is
repeated until nothing changes. Doubles are removed. The features are solved for the sample with the measured map of
:mod:`.passing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn

from leakgauge.attacks.analytic.dense import DoesNotFit
from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.attacks.malicious.cells import cells_of, step_of
from leakgauge.attacks.malicious.layout import dummies, layout_of, sent_model
from leakgauge.attacks.malicious.passing import Decoder, decoder_of
from leakgauge.attacks.spec import AttackSpec, Cost, Fit
from leakgauge.core.checks import positive
from leakgauge.core.local_training import LocalTraining
from leakgauge.core.observation import Observation
from leakgauge.core.one_gradient import gradient_of, mixes_linearly, why_no_gradient
from leakgauge.core.params import inside
from leakgauge.core.progress import Report
from leakgauge.federation.losses import loss_of

#: The rules of malicious servers that plant traps, as observations name them in ``steered``.
RULES = ("trap_rows", "half_negative_rows", "added_block")
#: The losses for which the network confirms a sample of a class.
CONFIRMED = ("cross_entropy", "binary_cross_entropy")
#: The number of samples whose labels are tried at once.
BATCH = 512
#: The relative error of a strength that the network confirms, if the message is exact.
EXACT = 1e-4
#: A strength is read if it is this many times its error.
VISIBLE = 6.0
#: A sample may leave the range of pixels by this much.
OUTSIDE = 0.02
#: The same for noisy messages.
FAR_OUTSIDE = 0.2
#: Ratios are the same if they differ by no more than their errors, and by less than this share of the usual distance
#: between two ratios. A mixture of two samples has half of this distance to each.
ALIKE = 0.35
#: The smallest usual distance, as a share of the length of a ratio.
SHARE_OF_LENGTH = 0.05
#: A tensor with fewer entries than this is too small to see that it was rounded.
FEW = 50


@dataclass(frozen=True)
class TrapReadOff(Attack):
    """The attack that reads samples from planted traps. See :func:`trap_read_off` for the arguments."""

    uses_defences: ClassVar[bool] = False

    tolerance: float = 0.01

    def __post_init__(self) -> None:
        positive("tolerance", self.tolerance, up_to=0.5)

    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Return the samples that the traps hold.

        Args:
            observation: The message of the client.
            seed: Not used, because the attack is deterministic.
            report: Not used, because the attack takes only a moment.
        """
        message = _Message(observation)
        features, labels = _Peeling(message, self.tolerance).run()
        samples = message.samples(features)
        total = observation.training.samples
        words = f"{len(samples)} of {total or 'an unknown number of'} samples read from the traps of a malicious server"
        if len(samples) and message.decoder.held < 1:
            words += f", of which the features hold {message.decoder.held:.0%} of the values"
        dtype = next(iter(observation.sent.values())).dtype
        return Reconstruction(samples.to(dtype), labels, Outcome("finished", 0, words))


class _Message:
    """The cells of a client's message, and the network that the server sent."""

    def __init__(self, observation: Observation) -> None:
        self.data, self.training = observation.data, observation.training
        self.single = sent_model(observation, torch.float32)
        self.model = sent_model(observation, torch.double)
        self.layout = layout_of(self.model, observation.data.shape)
        names = inside(self.layout.dense, "weight"), inside(self.layout.dense, "bias")
        self.scaled = why_no_gradient(observation) is None
        update = gradient_of(observation) if self.scaled else observation.difference()
        kernel, bias = (update[name].double() for name in names)
        sent = [observation.sent[name].double() for name in names]
        eps = torch.finfo(observation.sent[names[0]].dtype).eps
        gradient = torch.cat([kernel, bias[:, None]], 1)
        columns = observation.sent[inside(self.layout.following, "weight")]
        self.equal_columns = bool((columns == columns[:, :1]).all())
        # Samples of whole numbers may look rounded, but not what the outputs of the traps are multiplied with.
        behind = update[inside(self.layout.following, "weight")].double()
        rounded = behind.count_nonzero() > FEW and step_of(behind) > 0
        self.cells = cells_of(torch.cat([sent[0], sent[1][:, None]], 1), gradient, eps, bool(rounded))
        if observation.kind == "weights":  # the returned weights are rounded in proportion to their own size
            step = float(self.training.lr or 1.0) if self.scaled else 1.0
            errors = [eps * value.abs().max() / step for value in sent]
            self.cells.noise.copy_((self.cells.noise.square() + errors[0] ** 2).sqrt())
            self.cells.bias_noise.copy_((self.cells.bias_noise.square() + errors[1] ** 2).sqrt())
        visible = self.cells.strengths.abs() > VISIBLE * self.cells.bias_noise
        ratios = self.cells.noise[visible] / self.cells.strengths[visible].abs()
        self.noise = float(ratios.median()) if len(ratios) else 0.0
        self.outside = min(OUTSIDE + 2 * self.noise, FAR_OUTSIDE)
        self.loss = loss_of(self.training)
        self.unit = 1 / float(self.training.samples or 1) if self.scaled else _unit(self.training)
        known = self.data.classes is not None and self.training.loss in CONFIRMED
        sizes = None in (self.training.batch_size, self.training.samples)
        self.batches = 1 if self.scaled or sizes else len(self.training.batch_sizes)
        known = known and self.training.samples is not None and self.unit is not None
        self.confirms = known and self._keeps_samples_apart()

    def _keeps_samples_apart(self) -> bool:
        """Return whether the outputs for a sample depend on no other sample, so that its gradient can be computed."""
        first = dummies(self.model, self.data.shape)
        try:
            with torch.no_grad():
                together, alone = self.model(first), self.model(first[:1])
        except (RuntimeError, ValueError):  # such as batch norm in training, which refuses a single sample
            return False
        return isinstance(together, Tensor) and torch.allclose(together[:1], alone, rtol=1e-6, atol=1e-9)

    @cached_property
    def decoder(self) -> Decoder:
        """The solution of the map from samples to features."""
        return decoder_of(self.single, self.layout, self.data.shape, self.noise)

    def samples(self, features: Tensor) -> Tensor:
        """Return the samples with the given features, in their own units."""
        if not len(features):
            return features.new_zeros(0, *self.data.shape)
        samples = self._decoded(features)
        return samples.clamp(0, 1) if self.data.bounded else samples

    def _decoded(self, features: Tensor) -> Tensor:
        return self.data.denormalise(self.decoder(features).reshape(-1, *self.data.shape))

    def out_of_range(self, features: Tensor) -> Tensor:
        """Return by how much samples leave the range of pixels, as a root of a mean square.

        A mixture with a negative share usually leaves it. Samples without a range never do.

        Args:
            features: The features of the samples.
        """
        if not self.data.bounded:
            return features.new_zeros(len(features))
        samples = self._decoded(features).flatten(1)
        beyond: Tensor = (samples - samples.clamp(0, 1)).square().mean(1).sqrt()
        return beyond

    def strengths(self, features: Tensor, rows: Tensor) -> Tensor:
        """Return, for each sample and each label, the gradient with respect to the output of a row, over all samples.

        Args:
            features: The features of the samples.
            rows: For each sample, the row of the layer.
        """
        parts = zip(features.split(BATCH), rows.split(BATCH), strict=True)
        return torch.cat([self._strengths(some, own) for some, own in parts]) * float(self.unit or 1)

    def _strengths(self, features: Tensor, rows: Tensor) -> Tensor:
        dense = self.model.get_submodule(self.layout.dense)
        assert isinstance(dense, nn.Linear)
        given = nn.functional.linear(features, dense.weight, dense.bias).requires_grad_()
        handle = dense.register_forward_hook(lambda module, inputs, output: given)
        inputs = self.decoder(features).reshape(-1, *self.data.shape)
        try:
            with torch.enable_grad():
                outputs = self.model(inputs)
                columns = []
                for label in range(self.data.classes or 0):
                    targets = torch.full((len(features),), label, device=features.device)
                    loss = self.loss(outputs, targets) * len(features)
                    (slope,) = torch.autograd.grad(loss, given, retain_graph=True)
                    columns.append(slope.gather(1, rows[:, None])[:, 0])
        finally:
            handle.remove()
        return torch.stack(columns, 1)


def _unit(training: LocalTraining) -> float | None:
    """Return by how much local training moves a bias for a gradient of 1 of one sample, or ``None`` if unknown.

    Traps are made to be active in one step only. Momentum applies the gradient of this step again in later steps.
    """
    if None in (training.lr, training.epochs, training.batch_size, training.samples, training.momentum):
        return None
    if not training.is_sgd or (training.momentum and training.steps > 1 and len(training.batch_sizes) > 1):
        return None  # with momentum, the step in which a trap was active matters
    size = min(training.need("batch_size"), training.need("samples"))
    return training.need("lr") * training.factor(0) * _repeated(training) / size


def _repeated(training: LocalTraining) -> float:
    """Return how often SGD with momentum applies a gradient that only the first step has."""
    momentum, velocity, total = float(training.momentum or 0.0), 1.0, 0.0
    for step in range(training.steps):
        total += (momentum * velocity + (step == 0)) if training.nesterov else velocity
        velocity *= momentum
    return total


class _Peeling:
    """The search for traps with a single sample. Accepted samples are subtracted from all traps that hold them."""

    def __init__(self, message: _Message, tolerance: float) -> None:
        self.message, self.cells, self.tolerance = message, message.cells, tolerance
        self.sums, self.strengths = self.cells.sums.clone(), self.cells.strengths.clone()
        self.noise, self.bias_noise = self.cells.noise.clone(), self.cells.bias_noise.clone()
        self.by_agreement = not message.confirms
        self.found: list[Tensor] = []
        self.labels: list[int] = []

    def run(self) -> tuple[Tensor, Tensor | None]:
        """Return the features of the accepted samples, and their labels if the network confirmed all of them."""
        while not self._complete and self._round():
            pass
        features = torch.stack(self.found) if self.found else self.sums[:0]
        known = self.message.confirms and all(label >= 0 for label in self.labels)
        labels = torch.tensor(self.labels, dtype=torch.long, device=features.device) if known else None
        return features, labels

    @property
    def _complete(self) -> bool:
        most = self.message.training.samples
        return most is not None and len(self.found) >= most

    def _round(self) -> bool:
        """Accept all samples that are alone in a trap now. Return whether there were any."""
        usable = (self.strengths.abs() > VISIBLE * self.bias_noise).nonzero().flatten()
        ratios = self.sums[usable] / self.strengths[usable, None]
        errors = self._errors(usable, ratios)
        near = self._plausible(usable, ratios, errors)
        usable, ratios, errors = usable[near], ratios[near], errors[near]
        if not len(usable):
            return False
        limit = self._limits(ratios, errors)
        labels, strengths = self._labelled(usable, ratios)
        accepted = labels >= 0
        if not self.found and not bool(accepted.any()):  # the strengths are unknown, as after clipping
            self.by_agreement = True
        noisy = VISIBLE * self.bias_noise[usable] > self.tolerance * self.strengths[usable].abs()
        if self.by_agreement or bool(noisy.any()):
            agreed = self._agree(usable, ratios, limit)
            accepted = accepted | (agreed if self.by_agreement else agreed & noisy)
        before = len(self.found)
        for index in errors.argsort().tolist():
            if self._complete:
                break
            if bool(accepted[index]) and not self._known(ratios[index], limit[index]):
                self._accept(usable[index], strengths[index], int(labels[index]))
        return len(self.found) > before

    def _errors(self, cells: Tensor, ratios: Tensor) -> Tensor:
        """Return the estimated error of each ratio, as the length of a vector."""
        strengths = self.strengths[cells].abs()
        kernel = self.noise[cells] * ratios.shape[1] ** 0.5
        sizes = kernel.square() + (self.bias_noise[cells] * ratios.norm(dim=1)).square()
        return torch.sqrt(sizes) / strengths

    def _plausible(self, cells: Tensor, ratios: Tensor, errors: Tensor) -> Tensor:
        """Return whether ratios lie between the thresholds of their own traps, and in a filled trap elsewhere."""
        if not len(cells):
            return torch.zeros(0, dtype=torch.bool, device=cells.device)
        looks = self.cells.looks[self.cells.directions[cells]]
        places = (ratios * looks).sum(1)
        low, high = self.cells.low[cells], self.cells.high[cells]
        slack = 4 * errors + 1e-5 * places.abs()
        inside_trap: Tensor = (places >= low - slack) & (places <= high + slack)
        return inside_trap

    def _limits(self, ratios: Tensor, errors: Tensor) -> Tensor:
        """Return, for each ratio, the distance below which another ratio counts as the same."""
        # If all traps hold the same sample, the distances between ratios say nothing.
        usual = torch.maximum(torch.cdist(ratios, ratios).median(), SHARE_OF_LENGTH * ratios.norm(dim=1).median())
        return torch.clamp(2 * errors + 1e-6 * ratios.norm(dim=1), max=ALIKE / 2 * float(usual))

    def _labelled(self, cells: Tensor, ratios: Tensor) -> tuple[Tensor, Tensor]:
        """Return the label of each ratio for which the network gives the observed strength, or -1, and the strength."""
        strengths = self.strengths[cells].clone()
        labels = torch.full((len(cells),), -1, dtype=torch.long, device=cells.device)
        if not self.message.confirms:
            return labels, strengths
        expected = self.message.strengths(ratios, self.cells.rows[cells])
        error = self.bias_noise[cells] / strengths.abs()
        # The outputs of the network move a little from batch to batch.
        limit = (VISIBLE * error).clamp(self.tolerance if self.message.batches > 1 else EXACT, self.tolerance)
        errors, best = (expected - strengths[:, None]).abs().min(1)
        nearest = expected.gather(1, best[:, None])[:, 0]
        right = (errors < limit * strengths.abs()) & (self.message.out_of_range(ratios) < self.message.outside)
        return torch.where(right, best, labels), torch.where(right & (error > EXACT), nearest, strengths)

    def _agree(self, cells: Tensor, ratios: Tensor, limit: Tensor) -> Tensor:
        """Return whether a trap of another direction has the same ratio."""
        directions = self.cells.directions[cells]
        other = directions[:, None] != directions
        alike = torch.cdist(ratios, ratios) < limit[:, None] + limit
        agreed: Tensor = (alike & other).any(1) & (self.message.out_of_range(ratios) < self.message.outside)
        return agreed

    def _known(self, ratio: Tensor, limit: Tensor) -> bool:
        """Return whether a sample was accepted before."""
        if not self.found:
            return False
        distance = (torch.stack(self.found) - ratio).norm(dim=1).min()
        return bool(distance <= 2 * limit + 1e-5 * ratio.norm())

    def _accept(self, cell: Tensor, strength: Tensor, label: int) -> None:
        """Keep the sample of a trap, and subtract it from its traps in all directions."""
        features = self.sums[cell] / strength
        self.found.append(features)
        self.labels.append(label)
        if not self.message.equal_columns or self.message.batches > 1:
            return  # a trap is closed by the first batch that opens it, so that it may lack this sample
        homes = self.cells.homes(features[None])[0]
        homes = torch.where(torch.arange(len(homes), device=homes.device) == self.cells.directions[cell], cell, homes)
        error = self.noise[cell], self.bias_noise[cell]
        for home in homes[homes >= 0]:
            self.sums[home] -= strength * features
            self.strengths[home] -= strength
            self.noise[home] = (self.noise[home] ** 2 + error[0] ** 2).sqrt()
            self.bias_noise[home] = (self.bias_noise[home] ** 2 + error[1] ** 2).sqrt()


def fits(observation: Observation) -> Fit:
    """Decide whether the attack applies. A malicious server must have planted traps.

    Args:
        observation: The message of the client.
    """
    if observation.steered not in RULES:
        return Fit(False, "needs a malicious server that planted traps")
    if not mixes_linearly(observation):
        return Fit(False, "a trap's gradients have a ratio that survives SGD, and this client uses Adam")
    try:
        layout_of(sent_model(observation, torch.double), observation.data.shape)
    except DoesNotFit as reason:
        return Fit(False, str(reason))
    return Fit(True, "a malicious server planted traps, each of which a few samples activate")


def trap_read_off(*, tolerance: float = 0.01) -> TrapReadOff:
    """Read samples from the traps that a malicious server planted (Fowl et al. 2022; Boenisch et al. 2023).

    Args:
        tolerance: The largest relative error of a strength that the network confirms, in noisy messages.
    """
    return TrapReadOff(tolerance)


SPECS = (
    AttackSpec(
        name="trap_read_off",
        factory=trap_read_off,
        summary="A malicious server: traps that few samples activate (Fowl et al. 2022; Boenisch et al. 2023).",
        fits=fits,
        cost=Cost.SECONDS,
        rank=1,
        malicious=True,
    ),
)
