"""Files that are written one tensor at a time are those that the format's own writer makes."""

import pytest
import safetensors.torch
import torch

from leakgauge.core.errors import FileError
from leakgauge.core.tensor_bytes import TYPES, pieces_of_file


def test_the_bytes_are_those_of_the_formats_own_writer():
    draws = torch.Generator().manual_seed(0)
    whole = {f"n{number}": torch.randn(3, 2, generator=draws).to(kind) for number, kind in enumerate(TYPES)}
    tensors = {**whole, "turned": torch.arange(6.0).reshape(2, 3).T, "empty": torch.zeros(0, 4)}
    written = b"".join(pieces_of_file(tensors, {"leakgauge": "result"}))
    read = safetensors.torch.load(written)
    assert all(
        torch.equal(read[name].view(torch.uint8), value.contiguous().view(torch.uint8))
        for name, value in tensors.items()
    )
    own = safetensors.torch.save({name: value.contiguous() for name, value in tensors.items()}, {"leakgauge": "result"})
    assert written.count(b'"leakgauge":"result"') == own.count(b'"leakgauge":"result"') == 1
    assert len(written) == len(own)


def test_types_that_the_format_does_not_have_are_refused():
    with pytest.raises(FileError, match="cannot be stored, such as 'a'"):
        list(pieces_of_file({"a": torch.zeros(2, dtype=torch.complex128)}, {}))
