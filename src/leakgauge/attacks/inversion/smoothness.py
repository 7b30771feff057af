"""Measures of a network's smoothness and of the cost of its forward pass. They decide whether L-BFGS is tried.

Both are measured in one forward pass. So functions such as ``torch.relu``, which are not modules of the network, are
found too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from leakgauge.attacks.inversion.fragility import KINKED
from leakgauge.core.observation import Observation
from leakgauge.federation.training import in_mode

#: The operations of PyTorch whose second derivative is zero almost everywhere.
KINKED_OPERATIONS = frozenset(
    {"relu", "threshold", "hardtanh", "leaky_relu", "rrelu", "prelu_kernel", "hardsigmoid", "hardswish", "clamp",
     "clamp_min", "clamp_max", "abs", "max", "maximum", "minimum", "amax", "max_pool1d", "max_pool2d", "max_pool3d",
     "adaptive_max_pool2d", "adaptive_max_pool3d"}
)  # fmt: skip


@dataclass(frozen=True)
class Pass:
    """The piecewise linear operations and the cost of a network's forward pass for one sample.

    Args:
        kinks: The names of the piecewise linear parts, such as ``"ReLU"``. A smooth network has none.
        operations: The number of multiplications for one sample.
    """

    kinks: tuple[str, ...]
    operations: int


class _Recorder(TorchDispatchMode):
    """A recorder of the piecewise linear operations and of the cost of a forward pass."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()
        self.operations = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return whether PyTorch marks this class for its compiler. The mark imports the compiler, which takes long."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.strip("_").split("_with_")[0]
        if name in KINKED_OPERATIONS:
            self.names.add(name)
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in flop_registry:
            self.operations += flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=result)
        return result


def forward_pass(observation: Observation) -> Pass:
    """Send one dummy sample through the model, and return the piecewise linear operations and the cost.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    model = observation.model
    modules = {type(module).__name__ for module in model.modules() if isinstance(module, KINKED)}
    like = next(iter(observation.sent.values()))
    # Two samples, because batch norm in train mode refuses one.
    inputs = torch.zeros(2, *observation.data.shape, dtype=like.dtype, device=like.device)
    buffers = {name: value.clone() for name, value in observation.model_buffers().items()}
    recorder = _Recorder()
    with torch.no_grad(), in_mode(model, observation.training.mode), recorder:
        functional_call(model, {**observation.sent, **buffers}, (inputs,))
    # The counters count two operations for each multiplication, and there are two samples.
    return Pass(tuple(sorted(modules)) or tuple(sorted(recorder.names)), recorder.operations // 4)
