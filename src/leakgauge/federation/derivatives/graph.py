"""A function that tells which results of a backward pass are used."""

from __future__ import annotations

from typing import Any

import torch


def needed(ctx: Any, tensors: int) -> list[bool]:
    """Return which of its first inputs an autograd function must compute slopes for.

    PyTorch tells an autograd function only which inputs require a gradient. The weights of a simulated client require
    one for the gradient that the client sends, but not when this gradient is differentiated by the samples.

    Args:
        ctx: The context of the function's backward pass.
        tensors: The number of inputs, which are all tensors.
    """
    wanted = list(ctx.needs_input_grad[:tensors])
    executed = getattr(torch._C, "_will_engine_execute_node", None)
    nodes = getattr(ctx, "next_functions", ())
    if executed is None or len(nodes) < tensors:
        return wanted
    for place, (node, _) in enumerate(nodes[:tensors]):
        if wanted[place] and node is not None:
            try:
                wanted[place] = executed(node)
            except RuntimeError:  # a leaf whose gradient is asked for
                wanted[place] = True
    return wanted
