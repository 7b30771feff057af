"""The values of samples that a model looks up in a table, as the token ids of a text or the codes of categories.

A lookup returns the row of a trained table (an embedding) whose index is the value. It has no derivative with respect
to the value, so no optimisation can search for the value. In return, the gradient of the table is zero in all rows that
were not looked up.

Samples of zeros and ones show which value of a sample is looked up in which table, because 0 and 1 are valid indices of
every table. The pattern of zeros and ones differs for each value. This works for any way in which PyTorch looks up
rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from leakgauge.attacks.analytic.model_copy import copy_of_model
from leakgauge.core.observation import DataSpec, Observation
from leakgauge.federation.training import in_mode

#: Larger samples are examined only if the model has an embedding.
LARGEST = 10**6
#: Samples with more values than this have no token ids.
MOST_VALUES = 2**16

_KNOWN: WeakKeyDictionary[nn.Module, dict[DataSpec, Lookups]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Slot:
    """One value of a sample that is looked up in a table.

    Args:
        value: The index of the value in the flattened sample.
        table: The name of the parameter that holds the table.
        zero: The index of the row that is looked up for the value 0.
        step: The difference of this index and the index that is looked up for the value 1.
        padding: The index of the row that is never trained (padding), or ``None``.
    """

    value: int
    table: str
    zero: int
    step: int
    padding: int | None = None


@dataclass(frozen=True)
class Lookups:
    """All values of a sample that a model looks up in tables.

    Args:
        slots: One slot for each value that is looked up.
        differentiable: Whether the output of the model has a derivative with respect to some value of the sample.
        any_order: Whether the output of the model is the same for every order of values that share a table.
    """

    slots: tuple[Slot, ...] = ()
    differentiable: bool = True
    any_order: bool = False

    @property
    def obstacle(self) -> str:
        """The reason why no attack can search for the samples as real numbers, or the empty text."""
        if self.slots:
            return (
                "the model looks up values of the samples in an embedding, as token ids, and a lookup has no derivative"
            )
        return "" if self.differentiable else "the model's output has no derivative with respect to the samples"

    def valid(self, inputs: Tensor) -> Tensor:
        """Return inputs in which every value that is looked up is 0 or 1, which are valid indices of every table.

        Args:
            inputs: Any inputs of the model.
        """
        places = [slot.value for slot in self.slots]
        flat = inputs.flatten(1).clone()
        flat[:, places] = (flat[:, places] > 0).to(flat)
        return flat.reshape(inputs.shape)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The indices of the values that are token ids, which are several values that share a table."""
        tables = [slot.table for slot in self.slots]
        return tuple(slot.value for slot in self.slots if tables.count(slot.table) > 1)


def lookups_of(observation: Observation) -> Lookups:
    """Return the values of a sample that the model looks up in tables.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    model, data = observation.model, observation.data
    known = _KNOWN.setdefault(model, {})
    if data not in known:
        known[data] = _examined(observation)
    return known[data]


class _Lookups(TorchDispatchMode):
    """The list of all lookups in a forward pass, with the address of the table, the indices and the padding index."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[int, Tensor, int]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return whether PyTorch marks this class for its compiler. The mark imports the compiler, which takes long."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation of PyTorch, and record it if it is a lookup."""
        name = getattr(func, "overloadpacket", None)
        if name is torch.ops.aten.embedding:
            self._record(args[0], args[1], args[2] if len(args) > 2 else -1)
        elif name in (torch.ops.aten._embedding_bag, torch.ops.aten._embedding_bag_forward_only):
            self._record(args[0], args[1], args[8] if len(args) > 8 else -1)
        elif name is torch.ops.aten.index and args[1] and isinstance(args[1][0], Tensor):
            self._record(args[0], args[1][0], -1)
        return func(*args, **(kwargs or {}))

    def _record(self, table: Tensor, rows: Tensor, padding: int) -> None:
        if not rows.is_floating_point() and rows.dtype != torch.bool:
            self.calls.append((table.data_ptr(), rows.detach().flatten().clone(), padding))


def _examined(observation: Observation) -> Lookups:
    data, size = observation.data, math.prod(observation.data.shape)
    embeds = any(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module in observation.model.modules())
    if size > (MOST_VALUES if embeds else LARGEST):
        return Lookups()
    like = next(iter(observation.sent.values()))
    model = copy_of_model(observation, like.dtype)
    try:
        with in_mode(model, "eval"):
            slots = _slots(model, data, like)
            return Lookups(
                tuple(slots), bool(slots) or _has_derivative(model, data, like), _any_order(model, slots, data)
            )
    except Exception:  # the model may be the user's own code, and may fail on a single sample
        return Lookups()


def _slots(model: nn.Module, data: DataSpec, like: Tensor) -> list[Slot]:
    names = {value.data_ptr(): name for name, value in model.named_parameters()}
    size = math.prod(data.shape)
    zeros = _calls(model, data, torch.zeros(size), like)
    if not any(table in names for table, _, _ in zeros):
        return []
    bits = range(size.bit_length())
    numbers = torch.arange(1, size + 1)
    patterns = [_calls(model, data, (numbers >> bit & 1).float(), like) for bit in bits]
    ones = _calls(model, data, torch.ones(size), like)
    slots: dict[int, Slot] = {}
    for call, (table, low, padding) in enumerate(zeros):
        seen = [one[call][1] for one in (ones, *patterns)]
        if table not in names or any(len(rows) != len(low) for rows in seen):
            continue
        high, codes = seen[0], torch.stack([rows != low for rows in seen[1:]])
        value = (codes.long() << torch.tensor(list(bits))[:, None]).sum(0) - 1
        for index in torch.nonzero((value >= 0) & (value < size) & (high != low)).flatten().tolist():
            step = int(high[index] - low[index])
            slot = Slot(int(value[index]), names[table], int(low[index]), step, padding if padding >= 0 else None)
            slots.setdefault(slot.value, slot)
    return [slots[value] for value in sorted(slots)]


def _calls(model: nn.Module, data: DataSpec, sample: Tensor, like: Tensor) -> list[tuple[int, Tensor, int]]:
    inputs = data.normalise(sample.to(like).reshape(1, *data.shape))
    with torch.no_grad(), _Lookups() as recorder:
        model(inputs)
    return [(table, rows.cpu(), padding) for table, rows, padding in recorder.calls]


def _has_derivative(model: nn.Module, data: DataSpec, like: Tensor) -> bool:
    inputs = torch.zeros(1, *data.shape, dtype=like.dtype, device=like.device).requires_grad_()
    with torch.enable_grad():
        outputs = model(inputs)
    return bool(outputs.requires_grad) if isinstance(outputs, Tensor) else True


def _any_order(model: nn.Module, slots: Sequence[Slot], data: DataSpec) -> bool:
    """Return whether the outputs are the same if the values that share a table change places."""
    tables = [slot.table for slot in slots]
    if len(set(tables)) == len(tables):  # no two values share a table
        return False
    like = next(model.parameters())
    draw = torch.Generator().manual_seed(0)
    sample = torch.zeros(math.prod(data.shape))
    places = torch.tensor([slot.value for slot in slots])
    sample[places] = (torch.rand(len(places), generator=draw) < 0.5).float()
    moved = sample.clone()
    for table in set(tables):
        same = torch.tensor([slot.value for slot in slots if slot.table == table])
        moved[same] = sample[same[torch.randperm(len(same), generator=draw)]]
    inputs = data.normalise(torch.stack([sample, moved]).to(like).reshape(2, *data.shape))
    with torch.no_grad():
        first, second = model(inputs[:1]), model(inputs[1:])
    return bool(torch.allclose(first, second, rtol=1e-4, atol=1e-6))


def used_rows(observation: Observation, table: str) -> Tensor:
    """Return the indices of the rows of a table that the client looked up.

    The rows that were not looked up did not change, or shrank by a common factor through weight decay.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        table: The name of the parameter that holds the table.
    """
    return torch.nonzero(changes_of(observation, table).any(1)).flatten()


def changes_of(observation: Observation, table: str) -> Tensor:
    """Return the update of a table without weight decay, in double precision. Rows that were not looked up are zero.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        table: The name of the parameter that holds the table.
    """
    change, sent = observation.difference()[table].double(), observation.sent[table].double()
    decays = observation.kind == "weights" and observation.training.weight_decay != 0
    if not decays or not bool((change.any(1) | ~sent.any(1)).all()):
        return change
    length = sent.square().sum(1).clamp_min(1e-300)
    shrinking = ((change * sent).sum(1) / length).median()
    rest = change - shrinking * sent  # most rows of a large table were not looked up
    rounding = 4 * torch.finfo(observation.sent[table].dtype).eps * sent.abs().amax(1)
    return torch.where((rest.abs().amax(1) > rounding)[:, None], rest, 0.0)
