"""Arrays of an .npz archive, read in pieces: NumPy itself reads such an array as a whole or not at all."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def npz_shape(path: Path, name: str) -> tuple[int, ...]:
    """Return the shape of an array of an archive.

    Raises:
        ValueError: See ``npz_pieces``.
    """
    with zipfile.ZipFile(path) as archive, _open(archive, name) as stream:
        return _read_header(stream)[0]


def npz_pieces(path: Path, name: str, axis: int, piece_bytes: int) -> Iterator[np.ndarray]:
    """Yield an array of an archive, stored or compressed, in pieces along its first or second axis.

    Args:
        path: Of the archive.
        name: Of the array.
        axis: 0: pieces of shape (any, ...). 1: pieces of shape (R, any) of an array of few rows, R, each of which is
            read by a stream of its own, since all of one row precedes all of the next in the file.
        piece_bytes: Size of a piece, about.

    Raises:
        ValueError: If the array is not in the archive, or holds Python objects or another order than C.
        zipfile.BadZipFile: If the archive is damaged.
    """
    with contextlib.ExitStack() as stack:
        archive = stack.enter_context(zipfile.ZipFile(path))
        streams = [stack.enter_context(_open(archive, name))]
        shape, dtype = _read_header(streams[0])
        inner = shape[axis + 1 :]
        item = dtype.itemsize * int(np.prod(inner, dtype=np.int64))
        for row in range(1, shape[0] if axis else 1):
            stream = stack.enter_context(_open(archive, name))
            _read_header(stream)
            stream.seek(row * shape[1] * item, 1)
            streams.append(stream)
        step = max(1, piece_bytes // (item * len(streams)))
        for first in range(0, shape[axis], step):
            count = min(step, shape[axis] - first)
            parts = [np.frombuffer(stream.read(count * item), dtype).reshape(count, *inner) for stream in streams]
            yield np.stack(parts) if axis else parts[0]


def _open(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    if f"{name}.npy" not in archive.namelist():
        raise ValueError(f"it holds no array {name}, but {', '.join(archive.namelist()) or 'nothing'}")
    return archive.open(f"{name}.npy")


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(stream)
    if version not in HEADER_READERS:
        raise ValueError(f"an array is of version {version} of the .npy format, and those read are 1.0 and 2.0")
    shape, fortran_order, dtype = HEADER_READERS[version](stream)
    if fortran_order or dtype.hasobject:
        order = "Fortran" if fortran_order else "C"
        raise ValueError(f"an array is of {dtype} in {order} order, and what can be read are numbers in C order")
    return shape, dtype
