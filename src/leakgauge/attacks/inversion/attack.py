"""Gradient inversion attacks, which optimise dummy samples until their update matches the observed update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor

from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.inversion.attempts import Attempt, attempt_seed, best_of, better_of, counted_from, not_worse
from leakgauge.attacks.inversion.fragility import Caution
from leakgauge.attacks.inversion.free_targets import (
    FreeTargets,
    Targets,
    as_simulated,
    free_targets,
    values_of,
    with_logits,
)
from leakgauge.attacks.inversion.guess import with_guess
from leakgauge.attacks.inversion.label_counts import dummies_at_a_time, dummies_held
from leakgauge.attacks.inversion.labels import Labels, LastLayer, dummies_for
from leakgauge.attacks.inversion.matching import average_epochs, match_epochs
from leakgauge.attacks.inversion.objectives import Cosine
from leakgauge.attacks.inversion.priors import Prior
from leakgauge.attacks.inversion.settings import Effort, Matching, Space, WarmStart, check_vectorisable
from leakgauge.attacks.inversion.solve import Descent, Solution, solve
from leakgauge.attacks.inversion.stopping import Rule
from leakgauge.attacks.inversion.unknown_recipe import complete_recipe
from leakgauge.attacks.inversion.update_models import ClientModel
from leakgauge.attacks.requirements import Workload, samples_in, size_of_prediction
from leakgauge.core.errors import UnknownName
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params
from leakgauge.core.progress import Report
from leakgauge.core.seeding import derive, generator

#: A function ``match(inputs, labels, extra, step)``, which returns the first term of the loss.
Match = Callable[[Tensor, Tensor, Params, int], Tensor]
#: The fields of an inversion that hold groups of settings.
GROUPS = ("matching", "space", "descent", "effort")


@dataclass(frozen=True)
class Inversion(Attack):
    r"""A gradient inversion attack, composed of an objective, a model of the client, priors and an optimiser.

    The attack minimises ``objective(update_model(samples), observed) + priors(samples)`` over the samples. It can
    optimise a separate copy of each sample for each local epoch. The copies are then matched between epochs and
    averaged. If the attacker knows the client's defences, the attack adapts to these defences
    (:mod:`leakgauge.attacks.inversion.adaptive`). :meth:`each` attacks many small clients in one run.

    Args:
        matching: The comparison of predicted and observed updates.
        labels: The method that supplies the labels of the samples, which are given or inferred. Targets that are no
            classes cannot be inferred. They are optimised beside the samples
            (:mod:`leakgauge.attacks.inversion.free_targets`).
        priors: Further terms of the loss, which depend on the samples alone.
        space: The starting point and the units of the dummy samples.
        descent: The optimiser, its learning-rate schedule and its stopping rule.
        effort: The number of restarts and retries.
        caution: The rule that adds a warning to the outcome if the attack is known to be fragile on this kind of
            message.
    """

    chooses_guess: ClassVar[bool] = False  # whether the optimisation itself may return the guess
    matching: Matching = Matching()  # noqa: RUF009 - frozen
    labels: Labels = LastLayer()  # noqa: RUF009
    priors: tuple[Prior, ...] = ()
    space: Space = Space()  # noqa: RUF009
    descent: Descent = Descent()  # noqa: RUF009
    effort: Effort = Effort()  # noqa: RUF009
    caution: Caution | None = None

    @property
    def takes_direction(self) -> bool:
        """Whether the attack needs no more than the direction of a gradient, because it compares directions."""
        return isinstance(self.matching.objective, Cosine)

    @property
    def stop(self) -> Rule:
        """The rule that decides when the optimisation stops."""
        return self.descent.stop

    def with_settings(self, **settings: Any) -> Self:
        """Return a copy of this inversion with other settings.

        >>> Inversion().with_settings(restarts=3, box=False).effort.restarts
        3

        Args:
            settings: The new value of each setting. A keyword is a field of the inversion, or a field of a group of
                settings such as ``effort``.
        """
        homes = {item.name: item.name for item in fields(self)}
        homes |= {item.name: group for group in GROUPS for item in fields(getattr(self, group))}
        changes: dict[str, Any] = {}
        for name, value in settings.items():
            if name not in homes:
                raise UnknownName("setting of an inversion", name, homes)
            home = homes[name]
            changes[home] = value if home == name else replace(changes.get(home, getattr(self, home)), **{name: value})
        return replace(self, **changes)

    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Reconstruct the client's samples.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            seed: The seed of all random draws.
            report: A function ``report(step, total, loss)`` that shows progress.
        """
        from leakgauge.attacks.inversion.adaptive import adapted

        completed = complete_recipe(observation, generator(seed, "recipe"))
        if completed is not observation:
            self.check(completed)
        return adapted(self, completed)._run(completed, seed, report)

    def workload(self, observation: Observation) -> Workload:
        """Return the size of the attack's computation, from which the memory that it needs is estimated.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
        """
        samples = samples_in(observation)
        if samples is None:
            return Workload(1, 1)
        effort, simulation = self.effort, size_of_prediction(self.matching.update_model, observation)
        dummies, shape = dummies_for(self.labels, observation), observation.data.shape
        parallel = effort.restarts if effort.vectorise else 1
        training, values = observation.training, effort.restarts * simulation.copies * samples
        known = None not in (training.samples, training.batch_size, training.epochs)
        steps = training.steps if known and dummies else 0
        others = steps * (observation.data.classes or 0)
        held, passing = dummies_held(shape, dummies), min(dummies, dummies_at_a_time(shape))
        return Workload(samples, values, simulation, held, passing, parallel, others)

    def _run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        attempts = self.effort.attempts
        total = attempts * self.descent.steps if self.effort.retries else None
        best: Attempt | None = None
        for attempt in range(attempts):
            seed_of_attempt = attempt_seed(seed, attempt)
            targets = self.targets(observation, generator(seed_of_attempt, "labels"))
            counted = report if total is None else counted_from(report, attempt * total // attempts, total)
            solution, copies = self.optimise(observation, targets, seed_of_attempt, counted)
            best = better_of(best, (solution, copies, targets))
            if self.is_over(solution):
                break
        assert best is not None
        solution, copies, targets = best
        kept = solution if self.chooses_guess else with_guess(self, observation, solution, targets)
        return self.reconstruction(observation, kept, copies, targets)

    def targets(self, observation: Observation, draw: torch.Generator) -> Targets:
        """Return the targets of the samples, which are given, read off the message or optimised beside the samples.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            draw: The random generator for all draws.
        """
        free = free_targets(observation, draw)
        targets = self.labels(observation, draw) if free is None else free
        return with_logits(targets, observation.data).to(observation.device)

    def client(self, observation: Observation, targets: Targets, *, functional: bool = False) -> ClientModel:
        """Return the attacker's model of one client. Targets that are optimised are among its further variables.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            targets: The targets of the samples.
            functional: Whether predictions must run under ``torch.func.vmap``.
        """
        if not isinstance(targets, FreeTargets):
            return self.matching.update_model.begin(observation, functional=functional)
        return targets.into(self.matching.update_model.begin(as_simulated(observation), functional=functional))

    def forecast(self, observation: Observation) -> float | None:
        """Return the expected run time on this machine in seconds, from a timed evaluation of the loss.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
        """
        from leakgauge.attacks.inversion.cost import forecast

        return forecast(self, observation)

    def scaled(self, factor: float) -> Self:
        """Return a copy of the inversion that takes more or fewer steps.

        Args:
            factor: The factor by which the total number of steps is multiplied. A factor below 1 makes the inversion
                cheaper.
        """
        from leakgauge.attacks.inversion.cost import scaled

        return cast(Self, scaled(self, factor))

    def run_each(
        self, observations: Sequence[Observation], seeds: Sequence[int], report: Report
    ) -> list[Reconstruction]:
        """Reconstruct the samples of several clients, in one run if they have the same small model and equal settings.

        Args:
            observations: One message for each client, as the server sees it.
            seeds: One seed for each client.
            report: A function ``report(step, total, loss)`` that shows progress.
        """
        from leakgauge.attacks.inversion.together import alike, invert_together

        pairs = zip(observations, seeds, strict=True)
        completed = [complete_recipe(observation, generator(seed, "recipe")) for observation, seed in pairs]
        if not alike(self, completed) or any(observation.defences for observation in completed):
            return super().run_each(observations, seeds, report)
        return invert_together(self, completed, seeds, report)

    def is_over(self, solution: Solution) -> bool:
        """Return whether this attempt is the last one, because it converged, is good enough or was interrupted."""
        low = self.effort.enough is not None and solution.loss <= self.effort.enough
        return low or solution.outcome.kind in ("converged", "interrupted")

    def reconstruction(self, observation: Observation, best: Solution, copies: int, targets: Targets) -> Reconstruction:
        """Convert a solution to a reconstruction with samples in their original units.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            best: The solution.
            copies: The number of copies of each sample in the solution. It is the number of local epochs if each epoch
                has its own dummy samples, and otherwise 1.
            targets: The labels that the attack used.
        """
        data = self.space.units(observation.data)
        epochs = data.denormalise(best.variables["inputs"]).unflatten(0, (copies, -1))
        epoch_labels = self._labels_of_epochs(targets, copies, epochs.shape[1])
        samples, matched = epochs[0], None
        if copies > 1:
            samples, matched = average_epochs(epochs, epoch_labels), match_epochs(epochs, epoch_labels)
        if data.bounded:
            samples = samples.clamp(0, 1)
            matched = None if matched is None else matched.clamp(0, 1)
        labels = best.variables.get("labels")
        if isinstance(targets, FreeTargets):
            labels = targets.head.decided(best.variables["labels"])
        else:
            labels = targets[: len(samples)] if labels is None else labels.argmax(-1)
        warning = "" if self.caution is None else self.caution(observation)
        outcome = replace(best.outcome, sentence=f"{best.outcome} ({warning})") if warning else best.outcome
        return Reconstruction(samples, labels, outcome, best.loss, best.trace, epochs=matched)

    def terms(self, observation: Observation, client: ClientModel, targets: Targets) -> Callable[[Params, int], Params]:
        """Return a function that computes the terms of one client's loss from the optimised variables and the step.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            client: The attacker's model of the client, from :meth:`client`.
            targets: The targets of the samples.
        """
        data = self.space.units(observation.data)
        match = self.matching_term(observation, client)
        priors = [prior for prior in self.priors if prior.applies(data)]
        known = values_of(targets)

        def terms(variables: Params, step: int) -> Params:
            inputs, extra = variables["inputs"], {name: variables[name] for name in client.extra}
            epochs = inputs.unflatten(0, (client.copies, -1))
            matched = {"match": match(inputs, known, extra, step)}
            return matched | {prior.name: prior(epochs, data) for prior in priors}

        return terms

    def matching_term(self, observation: Observation, client: ClientModel) -> Match:
        """Return a function that computes the weighted distance between the predicted and the observed update.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            client: The attacker's model of the client.
        """
        data, matching, total = self.space.units(observation.data), self.matching, self.stop.max_steps
        observed = observation.difference() if matching.objective.scale_free else observation.summed_gradient()
        distance = matching.objective.begin(observation.model)
        share = 1 / client.batches if matching.per_batch else 1.0

        def match(inputs: Tensor, labels: Tensor, extra: Params, step: int) -> Tensor:
            seen = inputs if data is observation.data else observation.data.normalise(data.denormalise(inputs))
            return matching.weight(step, total) * share * distance(client(seen, labels, **extra), observed)

        return match

    def optimise(self, observation: Observation, targets: Targets, seed: int, report: Report) -> tuple[Solution, int]:
        """Return the solution with the lowest loss, and the number of dummy samples for each of the client's samples.

        This number is 1, or the number of epochs if each epoch has its own dummy samples.

        Args:
            observation: The client's message, with known or estimated values of all training settings that the attack
                needs.
            targets: The targets of the samples, which are known or start the optimisation.
            seed: The seed of all random draws.
            report: A function ``report(step, total, loss)`` that shows progress.
        """
        vectorise, restarts = self.effort.vectorise, self.effort.restarts
        if vectorise:
            check_vectorisable(observation)
        data = self.space.units(observation.data)
        targets = with_logits(targets, observation.data)
        client = self.client(observation, targets, functional=vectorise)
        terms = self.terms(observation, client, targets)
        variables = {name: torch.stack([value] * restarts) for name, value in client.extra.items()}
        if isinstance(targets, FreeTargets):
            variables["labels"] = torch.stack(self._label_starts(observation, targets, seed))
        before, own_starts = 0, None
        if isinstance(self.space.start, WarmStart):
            before = restarts * self.space.start.inversion.descent.steps
            counted = counted_from(report, 0, before + self.descent.steps)
            warm = self._warm(self.space.start, observation, targets, seed, counted)
            if warm[-1][0].outcome.kind == "interrupted":
                return best_of(warm)
            starts = self._spread(self.space.start, warm, observation, client.copies, targets, seed)
            still = replace(self.space.start, noise=0.0)
            own_starts = self._spread(still, warm, observation, client.copies, targets, seed)
            if "labels" in variables:
                variables["labels"] = torch.stack([solution.variables["labels"] for solution, _ in warm])
        else:
            draws = [generator(seed, "start", restart) for restart in range(restarts)]
            starts = [self._blind(observation, client.copies, draw) for draw in draws]
        solutions = solve(
            lambda variables, constants, step: terms(variables, step),
            {"inputs": torch.stack(starts), **variables},
            self.descent,
            project=self.space.projection(data),
            vectorise=vectorise,
            report=counted_from(report, before, before + self.descent.steps),
        )
        if own_starts is not None:
            kept = [{name: variables[name][row] for name in {"labels"} & set(variables)} for row in range(restarts)]
            rows = zip(solutions, own_starts, kept, strict=True)
            solutions = [not_worse(solution, {"inputs": start, **rest}, terms) for solution, start, rest in rows]
        return best_of([(solution, client.copies) for solution in solutions])

    def _label_starts(self, observation: Observation, targets: FreeTargets, seed: int) -> list[Tensor]:
        """Return the initial variables of the targets for each restart."""
        draws = [generator(seed, "labels", restart) for restart in range(1, self.effort.restarts)]
        others = [values_of(self.targets(observation, draw)) for draw in draws]
        return [targets.start, *(other.to(targets.start) for other in others)]

    def _warm(
        self, start: WarmStart, observation: Observation, targets: Targets, seed: int, report: Report
    ) -> list[tuple[Solution, int]]:
        """Run another, faster inversion once for each restart, and return its results as starting points.

        The results are converted to the units in which this inversion optimises samples. If a run is interrupted, no
        further run is started.
        """
        data, units = self.space.units(observation.data), start.inversion.space.units(observation.data)
        results, steps = [], start.inversion.descent.steps
        for restart in range(self.effort.restarts):
            counted = counted_from(report, restart * steps, self.effort.restarts * steps)
            solution, copies = start.inversion.optimise(observation, targets, derive(seed, "warm", restart), counted)
            if units != data:
                inputs = data.normalise(units.denormalise(solution.variables["inputs"]))
                solution = replace(solution, variables=solution.variables | {"inputs": inputs})
            results.append((solution, copies))
            if solution.outcome.kind == "interrupted":
                break
        return results

    def _spread(
        self,
        start: WarmStart,
        warm: list[tuple[Solution, int]],
        observation: Observation,
        copies: int,
        targets: Targets,
        seed: int,
    ) -> list[Tensor]:
        """Copy the results of another inversion to all epochs, and return one starting point for each restart."""
        labels = self._labels_of_epochs(targets, copies, int(observation.training.need("samples")))
        first_epochs = [solution.variables["inputs"].unflatten(0, (held, -1))[0] for solution, held in warm]
        return [
            start.spread(inputs, copies, generator(seed, "noise", restart), labels)
            for restart, inputs in enumerate(first_epochs)
        ]

    def _blind(self, observation: Observation, copies: int, draw: torch.Generator) -> Tensor:
        """Draw a random starting point, for an inversion that does not start from the result of another inversion."""
        data, like = self.space.units(observation.data), next(iter(observation.sent.values()))
        shape = (copies * int(observation.training.need("samples")), *data.shape)
        return self.space.draw(shape, data, draw).to(like.device, like.dtype)

    def _labels_of_epochs(self, targets: Targets, copies: int, samples: int) -> Tensor | None:
        """Return the labels of each epoch, (epochs, samples), or ``None`` if these labels are not needed.

        They are not needed if all epochs have the samples in the same order, or share the same dummy samples. The
        result is also ``None`` if ``targets`` does not hold the labels of every epoch.
        """
        same_order = getattr(self.matching.update_model, "new_orders", False)
        if copies == 1 or len(targets) != copies * samples or same_order or isinstance(targets, FreeTargets):
            return None
        labels: Tensor = targets.unflatten(0, (copies, samples))
        return labels
