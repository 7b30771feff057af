r"""The search for values that are looked up, from the features of one sample.

The features :math:`f` of a sample are the inputs of a dense layer, one vector for each sample, and are known from the
gradient of this layer. The search changes one value at a time, or exchanges two values, as long as this reduces

.. math:: d(x) = \frac{\lVert \varphi(x) - f \rVert}{\lVert f \rVert} ,

where :math:`\varphi` is the network up to the dense layer. It needs forward passes only, and starts again from another
arrangement if it ends above :data:`SOLVED`. If the network concatenates embeddings, each value has its own part of the
features, so the first pass over the values ends at the sample. Values that are no token ids enter most networks
linearly, and are solved for by least squares in each step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from leakgauge.core.progress import Report

#: A search is finished below this relative distance of the features.
SOLVED = 1e-4
#: The number of samples that pass through the network at a time.
AT_ONCE = 512


@dataclass(frozen=True, eq=False)
class Target:
    """The features of one sample, as far as the message shows them.

    Args:
        features: The features.
        direction: Whether only their direction is known, and not their length.
    """

    features: Tensor
    direction: bool = False

    def distances(self, features: Tensor, free: Tensor | None) -> Tensor:
        """Return the relative distance of each row of features, after the best choice of the free values.

        Args:
            features: The features of several candidates, one in each row.
            free: An orthonormal basis of the features that the other values can change, or ``None``.
        """
        rest = features - self.features
        if self.direction:
            units = features / features.norm(dim=1, keepdim=True).clamp_min(1e-300)
            rest = units - self.features
        if free is not None and not self.direction:
            rest = rest - (rest @ free) @ free.T
        relative: Tensor = rest.norm(dim=1) / self.features.norm().clamp_min(1e-300)
        return relative


class Found(NamedTuple):
    """The result of a search.

    Args:
        values: The best values.
        distance: The relative distance of their features.
        interrupted: Whether Ctrl-C ended the search.
    """

    values: Tensor
    distance: float
    interrupted: bool = False


@dataclass(frozen=True, eq=False)
class TokenSearch:
    """The search for the values of one sample that are looked up.

    Args:
        extract: The function that maps inputs of the model to features.
        blank: An input of the model, whose other values stay as they are.
        places: The index of each value that is looked up, in the flattened input.
        choices: The possible values at each of these places.
        groups: The table of each place. Only values of one table change places.
    """

    extract: Callable[[Tensor], Tensor]
    blank: Tensor
    places: Tensor
    choices: Sequence[Tensor]
    groups: Sequence[str]

    def run(self, target: Target, restarts: int, draw: torch.Generator, report: Report) -> Found:
        """Search from several starts, and return the best values.

        Args:
            target: The features of the sample.
            restarts: The largest number of starts.
            draw: The generator of the starts.
            report: The progress function.
        """
        free = self._free_basis()
        best = Found(self._start(draw), math.inf)
        try:
            for number in range(restarts):
                values = self._start(draw)
                found = Found(values, float(self._distances(values[None], target, free)[0]))
                while True:
                    before, found = found.distance, self._swept(found, target, free)
                    best = min(best, found, key=lambda one: one.distance)
                    report(number + 1, restarts, best.distance)
                    if found.distance >= before or found.distance < SOLVED:
                        break
                if best.distance < SOLVED:
                    break
        except KeyboardInterrupt:
            return best._replace(interrupted=True)
        return best

    def _swept(self, found: Found, target: Target, free: Tensor | None) -> Found:
        """Return the values after the best change of each value in turn."""
        for place in range(len(self.places)):
            tried = self._moves(found.values, place)
            distances = self._distances(tried, target, free)
            index = int(distances.argmin())
            if float(distances[index]) < found.distance:
                found = Found(tried[index], float(distances[index]))
        return found

    def completed(self, values: Tensor, target: Target) -> Tensor:
        """Return the input of the model with given values, and with the best choice of the other values.

        Args:
            values: The values that are looked up.
            target: The features of the sample.
        """
        inputs = self._inputs(values[None])
        jacobian = self._jacobian(inputs)
        if jacobian is None or target.direction:
            return inputs[0]
        change = torch.linalg.lstsq(jacobian, (target.features - self.extract(inputs)[0].detach())[:, None]).solution
        flat = inputs[0].flatten().clone()
        flat[self._others()] += change[:, 0].to(flat)
        return flat.reshape(self.blank.shape)

    def _start(self, draw: torch.Generator) -> Tensor:
        """Return values that use every choice of a table about equally often, in a random order."""
        values = self.blank.new_zeros(len(self.places))
        for group in dict.fromkeys(self.groups):
            members = [place for place, name in enumerate(self.groups) if name == group]
            choices = self.choices[members[0]]
            repeated = choices.repeat(-(-len(members) // len(choices)))[: len(members)]
            values[members] = repeated[torch.randperm(len(members), generator=draw)].to(values)
        return values

    def _moves(self, values: Tensor, place: int) -> Tensor:
        """Return the values with another choice at one place, or with its value exchanged or moved elsewhere."""
        choices = self.choices[place]
        changed = values.repeat(len(choices), 1)
        changed[:, place] = choices.to(values)
        partners = [other for other, group in enumerate(self.groups) if group == self.groups[place] and other != place]
        if not partners:
            return changed
        swapped = values.repeat(len(partners), 1)
        swapped[:, place] = values[partners]
        swapped[torch.arange(len(partners)), partners] = values[place]
        members = [other for other, group in enumerate(self.groups) if group == self.groups[place]]
        shifted = values.repeat(len(members), 1)
        position = members.index(place)
        for row, order in enumerate(_moved(len(members), position)):
            shifted[row, members] = values[[members[index] for index in order]]
        return torch.cat([changed, swapped, shifted])

    def _inputs(self, values: Tensor) -> Tensor:
        flat = self.blank.flatten().repeat(len(values), 1)
        flat[:, self.places] = values
        return flat.reshape(-1, *self.blank.shape)

    def _distances(self, values: Tensor, target: Target, free: Tensor | None) -> Tensor:
        with torch.no_grad():
            parts = [
                target.distances(self.extract(self._inputs(part)), free).nan_to_num(math.inf)
                for part in values.split(AT_ONCE)
            ]
        return torch.cat(parts)

    def _others(self) -> Tensor:
        """Return the indices of the values that are not looked up."""
        other = torch.ones(self.blank.numel(), dtype=torch.bool, device=self.blank.device)
        other[self.places] = False
        return torch.nonzero(other).flatten()

    def _jacobian(self, inputs: Tensor) -> Tensor | None:
        """Return the derivatives of the features with respect to the values that are not looked up."""
        others = self._others()
        if not len(others):
            return None
        jacobian = torch.autograd.functional.jacobian(lambda one: self.extract(one)[0], inputs)
        derivatives: Tensor = jacobian.flatten(1)[:, others]
        return derivatives if bool(derivatives.any()) else None

    def _free_basis(self) -> Tensor | None:
        """Return an orthonormal basis of the features that the values that are not looked up can change."""
        start = torch.stack([choices[0] for choices in self.choices]).to(self.blank)
        jacobian = self._jacobian(self._inputs(start[None]))
        return None if jacobian is None else torch.linalg.qr(jacobian)[0]


def _moved(count: int, position: int) -> list[list[int]]:
    """Return all orders in which one index moves to another position."""
    rest = [index for index in range(count) if index != position]
    return [[*rest[:target], position, *rest[target:]] for target in range(count)]
