"""The bytes of a safetensors file, one tensor at a time, so that a large file is written without a copy in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from leakgauge.core.errors import FileError

#: The names of number types in the format.
TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def pieces_of_file(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file, which are its header and one tensor after another.

    Args:
        tensors: A dictionary from names to tensors. Tensors on another device are moved one at a time.
        metadata: The texts of the header.
    """
    # As the format's own writer does, tensors are sorted by the size of their numbers, so that all are aligned.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in TYPES:
            raise FileError(f"tensors of type {tensor.dtype} cannot be stored, such as {name!r}")
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        yield bytes_of(tensors[name])


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor. They are those in memory, without a copy, if the tensor is dense and on the CPU.

    Args:
        tensor: A tensor.
    """
    dense = tensor.detach().cpu().contiguous()
    return dense.reshape(-1).view(torch.uint8).numpy().data
