"""Named arrays and one text as the bytes of a safetensors file with a checksum, and back.

Eight bytes with the length of a JSON header, the header, then the arrays one after another in little-endian order.
The header's ``__metadata__`` holds two texts: ``integrand``, the caller's, and ``sha256``, the checksum of the whole
file with its own 64 digits as zeros. Programs that know safetensors can read the file; this module only reads its own.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from integrand.errors import InputError, ModelFileError

MAX_HEADER_BYTES = 4 * 2**20  # headers are a few kB; a file that claims more is not read
_MAX_AXES = 8
DTYPES = {"F64": np.dtype("<f8"), "I64": np.dtype("<i8"), "BOOL": np.dtype("?")}
AGAIN = "get another copy of the file, or save the model again"
# Within a text the quotes are escaped, so this finds the entry of the metadata and nothing else.
_DIGEST, _ZEROS = re.compile(rb'"sha256":"([0-9a-f]{64})"'), b"0" * 64


def to_bytes(text: str, arrays: Mapping[str, np.ndarray]) -> bytes:
    """The content of a file: the same for the same text and arrays, wherever it is made."""
    index: dict[str, Any] = {"__metadata__": {"integrand": text, "sha256": _ZEROS.decode()}}
    offset = 0
    for name, array in arrays.items():
        dtype = next(known for known, dtype in DTYPES.items() if dtype == array.dtype)
        index[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    header = json.dumps(index, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # so that the arrays start at a multiple of 8
    if len(header) > MAX_HEADER_BYTES:
        raise InputError(
            f"the header of a file would have {len(header)} bytes, more than {MAX_HEADER_BYTES}: note less"
        )
    # Hashed and written from one copy, so that an array which changes meanwhile does no harm.
    body = b"".join(array.tobytes() for array in arrays.values())
    start = len(header).to_bytes(8, "little")
    digest = hashlib.sha256(start + header)
    digest.update(body)
    return start + _DIGEST.sub(f'"sha256":"{digest.hexdigest()}"'.encode(), header, count=1) + body


def read(stream: BinaryIO) -> tuple[str, dict[str, np.ndarray]]:
    """Text and arrays (read-only views) of a file that `to_bytes` made; a ModelFileError for any other bytes.

    Nothing is parsed before the checksum of every byte has been compared, and nothing is allocated on the word of
    the file: no more than its real size is read, and of a file with another kind of header only that header.
    """
    size = stream.seek(0, 2)
    stream.seek(0)
    start = stream.read(8)
    length = int.from_bytes(start, "little")
    header = stream.read(length) if length <= min(size - 8, MAX_HEADER_BYTES) else b""
    digest_entry = _DIGEST.search(header)
    if digest_entry is None:
        raise ModelFileError(f"this is no model file of integrand, or its first bytes are damaged; {AGAIN}")
    body = stream.read()
    digest = hashlib.sha256(start + header[: digest_entry.start(1)] + _ZEROS + header[digest_entry.end(1) :])
    digest.update(body)
    if digest.hexdigest().encode() != digest_entry[1]:
        raise ModelFileError(f"the file is damaged or incomplete (its checksum does not match); {AGAIN}")
    try:
        index = json.loads(header)
        text = index.pop("__metadata__")["integrand"]
        return text, _views(index, body)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelFileError(f"the header of the file makes no sense ({error}); {AGAIN}") from error


def _views(index: dict[str, Any], body: bytes) -> dict[str, np.ndarray]:
    """The arrays, which follow each other without gaps and end with the file."""
    arrays, offset = {}, 0
    for name, entry in index.items():
        dtype, shape = DTYPES[entry["dtype"]], entry["shape"]
        if len(shape) > _MAX_AXES or not all(type(n) is int and 0 <= n <= len(body) for n in shape):
            raise ValueError(f"{name} has an impossible shape")
        end = offset + dtype.itemsize * math.prod(shape)
        if entry["data_offsets"] != [offset, end] or end > len(body):
            raise ValueError(f"{name} is not where it should be")
        arrays[name] = np.ndarray(tuple(shape), dtype, body, offset)
        if dtype == np.dtype("?") and np.any(arrays[name].view(np.uint8) > 1):
            raise ValueError(f"{name} holds other values than true and false")
        offset = end
    if offset != len(body):
        raise ValueError("bytes are left over at the end")
    return arrays
