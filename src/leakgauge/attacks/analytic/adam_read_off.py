r"""The attack on a client with one sample that trains with Adam or AdamW, through a dense first layer.

A step of Adam looks like the signs of the gradient, but the changes of the weights differ slightly, because Adam adds
:math:`\varepsilon` to the size of each gradient. These differences determine the sample (:mod:`.adam_layer`). The known
network and the known recipe then correct the sample until the simulated update is the observed one, up to rounding
(:mod:`.adam_message`).

Read-off by dividing gradients (Phong et al. 2017) needs gradients. We know of no attack that reads a sample from the
rounding of Adam's steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakgauge.attacks.analytic.adam_groups import labels_of, pure_groups
from leakgauge.attacks.analytic.adam_layer import Line, fit_line
from leakgauge.attacks.analytic.adam_message import AdamMessage, with_rate
from leakgauge.attacks.analytic.adam_update import decays, fit_layer, layer_update
from leakgauge.attacks.analytic.dense import DenseChain, DoesNotFit
from leakgauge.attacks.analytic.levenberg import search
from leakgauge.attacks.analytic.read_off import CONFIRMED_LOSSES
from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.inversion.labels import LastLayer, granted_labels
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.attacks.spec import AttackSpec, Cost, Fit
from leakgauge.core.checks import whole_number
from leakgauge.core.errors import LeakgaugeError, MissingKnowledge
from leakgauge.core.observation import Observation
from leakgauge.core.one_gradient import optimiser_of
from leakgauge.core.progress import Report
from leakgauge.core.seeding import generator

#: The largest mean squared residual, in units of rounding errors, of a sample that explains the update.
EXPLAINS = 3.0
#: The largest estimated relative error of an exact sample, and of a sample that is returned.
EXACT, NOISIEST = 1e-3, 0.3
#: The estimated relative error of the fit of one step from which a sample is not searched.
HIDDEN = 3.0
#: The stretches that are tried, as powers of ten, and the number of them. Both signs are tried.
STRETCHES, TRIED = (-2.5, 1.5), 40
#: The number of times that the best stretches are refined, and the number of trials in each refinement.
REFINED, TRIALS = 3, 7
#: The number of stretches from which a search begins.
STARTS = 3
#: The noise, in units of the learning rate, with which stretches are compared.
COARSE = 0.02
#: The relative errors of the inputs from stage to stage of a search after several steps, and the iterations of a stage.
SHARES, OF_STAGE = (0.1, 0.03, 0.01, 0.003, 0.001, 1e-4), 8
#: The largest number of iterations of the last stage.
ITERATIONS = 40
#: The relative error of a sample for which the equations of all weights are not solved, because the line is bent.
BENT = 0.03
#: The largest disagreement of a sample for which the equations of all weights are not solved.
AGREES = 0.1
#: The largest size of a table's value, in the units of the layer's inputs.
LARGEST = 30.0
#: The number of unknowns times weights times steps in the derivatives of a message above which they take too long.
WORK_LIMIT = 40_000_000


@dataclass(frozen=True)
class AdamReadOff(Attack):
    """The attack on one sample that Adam was trained on. See :func:`adam_read_off` for the arguments."""

    uses_defences: ClassVar[bool] = False

    rounds: int = 3

    def __post_init__(self) -> None:
        whole_number("rounds", self.rounds)

    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Return the client's sample, if the update determines it.

        Args:
            observation: The message of the client.
            seed: Not used, because the attack is deterministic.
            report: A function ``report(step, total, loss)`` that shows progress. The number of steps is unknown.
        """
        message = _Message(observation, report)
        if observation.training.samples != 1:
            return _of_batch(message)
        try:
            found = self._one_step(message) if message.steps == 1 else self._several_steps(message)
        except KeyboardInterrupt:
            outcome = Outcome("interrupted", 0, "interrupted, so the sample is a first estimate")
            return message.nothing(outcome) if message.best is None else message.result(message.best, outcome)
        if found is None or not found.error < NOISIEST:
            words = "nothing could be read off, because no sample explains the update up to the rounding of weights"
            return message.nothing(Outcome("finished", 0, words))
        words = f"with an estimated relative error of {found.error:.1g}"
        if found.error < EXACT:
            outcome = Outcome("converged", 0, f"1 of 1 samples read off exactly, {words}")
        else:
            outcome = Outcome("finished", 0, f"1 of 1 samples read off, {words}")
        return message.result(found, outcome)

    def _one_step(self, message: _Message) -> _Found | None:
        """Return the sample behind one step, or ``None`` if its rows do not agree on a sample."""
        fitted = fit_layer(message.observation, message.rows, message.chain.first)
        agrees = fitted.misfit <= EXPLAINS
        if not agrees and not message.decays:
            return None
        inputs = message.model_inputs(fitted.values)
        error = fitted.relative_error * math.sqrt(max(1.0, fitted.misfit)) if agrees else math.inf
        found = message.best = _Found(inputs, error)
        problem = message.problem(message.rate * fitted.amplitude)
        if problem is None or not message.affordable:
            return found
        point = inputs[problem.unknown]
        point = _staged(problem, point) if message.decays else _last_stage(problem, point)
        solved = _solution(problem, point) if problem.misfit(point) <= EXPLAINS else found
        return min(found, solved, key=lambda one: one.error)

    def _several_steps(self, message: _Message) -> _Found | None:
        """Return the sample behind several steps, or ``None`` if no sample is found that explains them."""
        line, problem = fit_line(message.rows), message.problem(message.rate)
        if line is None or problem is None:
            return None
        for start in _stretched(problem, message, line):
            point, message.best = start.inputs[problem.unknown], message.best or start
            if not message.affordable:
                apart = problem.disagreement(point)
                if apart < AGREES:
                    return _Found(start.inputs, math.hypot(start.error, BENT, 2 * apart))
                continue
            for _ in range(self.rounds):
                point = _staged(problem, point)
                if problem.misfit(point) <= EXPLAINS:
                    return _solution(problem, point)
        return None


@dataclass(frozen=True, eq=False)
class _Found:
    """A sample that was found.

    Args:
        inputs: The inputs of the model as one vector.
        error: The estimated relative error.
    """

    inputs: Tensor
    error: float


class _Message:
    """The update of the first dense layer, and other facts about a client's message."""

    def __init__(self, observation: Observation, report: Report) -> None:
        self.chain, self.report = _chain(observation), report
        self.best: _Found | None = None
        self.observation, self.steps = observation, observation.training.steps
        self.rows, self.rate = layer_update(observation, self.chain.first)
        self.targets = _targets(observation) if observation.training.samples == 1 else None
        self.decays = decays(observation)

    def nothing(self, outcome: Outcome) -> Reconstruction:
        """Return a result without samples."""
        observation, labels = self.observation, self.targets
        dtype = next(iter(observation.sent.values())).dtype
        empty = torch.zeros(0, *observation.data.shape, dtype=dtype, device=observation.device)
        return Reconstruction(empty, None if labels is None else labels[:0], outcome)

    def result(self, found: _Found, outcome: Outcome) -> Reconstruction:
        """Return a result with one sample."""
        data, dtype = self.observation.data, next(iter(self.observation.sent.values())).dtype
        samples = data.denormalise(found.inputs.reshape(1, *data.shape)).to(dtype)
        return Reconstruction(samples.clamp(0, 1) if data.bounded else samples, self.targets, outcome)

    def model_inputs(self, inputs: Tensor) -> Tensor:
        """Return inputs of the model as one vector, with pixels in [0, 1].

        Args:
            inputs: The inputs of the first dense layer.
        """
        entrance, data = self.chain.entrance, self.observation.data
        assert entrance is not None
        flat = torch.empty_like(inputs)
        flat[entrance.order] = (inputs - entrance.shift) / entrance.scale
        if not data.bounded:
            return flat
        return data.normalise(data.denormalise(flat.reshape(1, *data.shape)).clamp(0, 1)).flatten()

    @property
    def affordable(self) -> bool:
        """Whether the derivatives of the whole update take only a moment."""
        unknowns = int(self.rows.live()[1].sum())
        weights = sum(value.numel() for value in self.observation.sent.values())
        return unknowns * self.steps * weights <= WORK_LIMIT

    def problem(self, rate: float) -> AdamMessage | None:
        """Return the equations of the whole update, or ``None`` if the network cannot be simulated.

        Args:
            rate: The learning rate, if it is not known.
        """
        entrance, observation = self.chain.entrance, self.observation
        assert entrance is not None
        changed = self.rows.live()[1][:-1]
        if self.targets is None or not bool(changed.any()):
            return None
        if observation.training.lr is None:
            observation = with_rate(observation, rate)
        known = self.model_inputs(torch.zeros_like(self.rows.updates[0, :-1]))
        try:
            problem = AdamMessage(observation, self.targets, known, entrance.order[changed])
            problem.residual(known[problem.unknown])
            problem.report = self.report
        except (LeakgaugeError, RuntimeError, ValueError):  # such as batch norm in training, which refuses one sample
            return None
        return problem

    @property
    def largest(self) -> float:
        """The largest size of an input of the first dense layer."""
        entrance, data = self.chain.entrance, self.observation.data
        assert entrance is not None
        if not data.bounded:
            return LARGEST
        black = torch.zeros(1, *data.shape, dtype=torch.double, device=self.observation.device)
        ends = torch.cat([data.normalise(black), data.normalise(black + 1)]).flatten(1)[:, entrance.order]
        return float((entrance.scale * ends + entrance.shift).abs().max())


def _staged(problem: AdamMessage, point: Tensor) -> Tensor:
    """Return the end of a search whose stages allow smaller and smaller errors."""
    for share in SHARES:
        (point,), _ = search(problem.blurred(share, point), point[None], OF_STAGE)
        if problem.misfit(point) <= EXPLAINS:
            break
    return _last_stage(problem, point)


def _last_stage(problem: AdamMessage, point: Tensor) -> Tensor:
    """Return the end of a search without additional noise."""
    return search(problem, point[None], ITERATIONS)[0][0]


def _solution(problem: AdamMessage, point: Tensor) -> _Found:
    """Return a sample that explains the whole update, with its estimated error."""
    inputs, errors = problem.inputs(point), problem.errors(point) * math.sqrt(max(1.0, problem.misfit(point)))
    return _Found(inputs, float(errors.norm() / inputs.norm().clamp_min(1e-300)))


def _stretched(problem: AdamMessage, message: _Message, line: Line) -> Iterator[_Found]:
    """Yield starts of the search, which are the inputs of the model with the best stretches of the fitted line."""
    coarse = problem.coarse(COARSE)

    def inputs(sign: int, stretch: float, bias: float) -> Tensor:
        return line.values(sign * 10**stretch, 10**bias, message.largest)

    def loss(sign: int, stretch: float, bias: float) -> float:
        """Return how badly the inputs explain the update."""
        point = message.model_inputs(inputs(sign, stretch, bias))[problem.unknown]
        return float(coarse.evaluate(point[None])[-1])

    powers = torch.linspace(*STRETCHES, TRIED, dtype=torch.double)
    width, around = float(powers[1] - powers[0]), torch.linspace(-1, 1, TRIALS, dtype=torch.double).tolist()
    tried = sorted((loss(sign, power, 0.0), sign, power) for sign in (1, -1) for power in powers.tolist())
    for _, sign, power in tried[:STARTS]:
        best, step = (math.inf, power, 0.0), width
        for _ in range(REFINED):
            best = min((loss(sign, best[1] + step * move, best[2]), best[1] + step * move, best[2]) for move in around)
            best = min((loss(sign, best[1], best[2] + step * move), best[1], best[2] + step * move) for move in around)
            step *= 2 / (TRIALS - 1)
        values, stretch = inputs(sign, best[1], best[2]), 10 ** best[1]
        yield _Found(message.model_inputs(values), line.relative_error(values, stretch, math.log(10) * step))


def _of_batch(message: _Message) -> Reconstruction:
    """Return the samples of a batch for which enough neurons are active alone."""
    observation, data = message.observation, message.observation.data
    dtype, total = next(iter(observation.sent.values())).dtype, observation.training.need("samples")
    groups = pure_groups(message.rows)[: int(total)]
    flat = [message.model_inputs(group.fitted.values) for group in groups]
    inputs = torch.stack(flat) if flat else torch.zeros(0, math.prod(data.shape), device=observation.device)
    samples = data.denormalise(inputs.reshape(-1, *data.shape)).to(dtype)
    classes = data.classes if observation.training.loss in CONFIRMED_LOSSES else None
    labels = labels_of(groups, message.chain, classes) if groups and classes is not None else None
    worst = max((group.fitted.relative_error for group in groups), default=0.0)
    words = f"with estimated relative errors of up to {worst:.1g}" if groups else "because no neurons agree on one"
    outcome = Outcome("finished", 0, f"{len(groups)} of {total} samples read off, {words}")
    return Reconstruction(samples.clamp(0, 1) if data.bounded else samples, labels, outcome)


def _targets(observation: Observation) -> Tensor | None:
    """Return the target of the only sample, or ``None`` if it is unknown."""
    granted = granted_labels(observation)
    if granted is not None:
        return granted
    try:
        return LastLayer()(observation, generator(0, "labels"))
    except MissingKnowledge:
        return None


def _chain(observation: Observation) -> DenseChain:
    """Return the :class:`.DenseChain` of the model, or raise an error if the attack does not apply."""
    training = observation.training
    if observation.kind == "gradient" or optimiser_of(observation) == "sgd":
        raise DoesNotFit("made for steps of Adam")
    for name in ("samples", "epochs", "batch_size"):
        if getattr(training, name) is None:
            raise DoesNotFit(f"needs the client's {name}, which is unknown")
    if training.samples != 1 and (training.steps > 1 or decays(observation)):
        raise DoesNotFit("made for one sample, or for one step without weight decay in the gradient")
    if training.lr is None and training.steps > 1:
        raise DoesNotFit("needs the client's learning rate, which is unknown, for several local steps")
    if training.weight_decay is None or (training.weight_decay and training.lr is None):
        raise DoesNotFit("needs the client's weight decay and learning rate, of which one is unknown")
    chain = DenseChain(observation)
    if training.samples != 1:
        chain.check_rows()
        if not chain.has_silent_neurons():
            raise DoesNotFit("every neuron of the first dense layer is active for all samples, so none holds only one")
    return chain


def fits(observation: Observation) -> Fit:
    """Decide whether the attack applies. Adam must have trained on one sample, which enters a dense layer with a bias.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    try:
        chain = _chain(observation)
    except DoesNotFit as reason:
        return Fit(False, str(reason))
    if observation.training.samples != 1:
        if not pure_groups(layer_update(observation, chain.first)[0]):
            return Fit(False, "no neurons of the first dense layer agree on one of several samples up to rounding")
        return Fit(True, "neurons that are active for one sample only differ in their steps by what eps adds to them")
    if observation.training.steps == 1:
        fitted = fit_layer(observation, layer_update(observation, chain.first)[0], chain.first)
        if not fitted.misfit <= EXPLAINS and not decays(observation):
            return Fit(False, "the neurons do not agree on one sample, as in noisy updates")
        if fitted.misfit <= EXPLAINS and not fitted.relative_error < HIDDEN:
            return Fit(False, "rounding of the weights hides what a step of Adam leaves of the sizes of the gradients")
    return Fit(True, "the sample enters a dense layer with a bias, and steps of Adam differ by what eps adds to them")


def adam_read_off(*, rounds: int = 3) -> AdamReadOff:
    """Read the only sample of a client that trains with Adam or AdamW off its dense first layer.

    A step of Adam changes all weights by nearly the same amount. The small differences between the changes, averaged
    over all neurons, show the sample. Where the loss and the label are known, the simulated training then corrects the
    sample, which makes it exact after several steps. The outcome contains an estimate of the error.

    Args:
        rounds: The largest number of searches that begin where the search before has ended.
    """
    return AdamReadOff(rounds)


SPECS = (
    AttackSpec(
        name="adam_read_off",
        factory=adam_read_off,
        summary="Adam read-off (ours): the differences of Adam's steps in a dense first layer hold a single sample.",
        fits=fits,
        cost=Cost.INSTANT,
        rank=15,
        audit={},
        exact=True,
    ),
)
