"""Is a model file whole? Read from its header, without reading the weights.

GGUF: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
safetensors: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import struct

from ansible.module_utils.gpurun_worker import Trouble

_AGAIN = "fetch the file again, and compare its size and checksum with the source's"
# Bytes of GGUF's fixed-size value types, by id; 8 is a string, 9 an array.
_VALUE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
# Tensor types, by id: elements of a block, bytes of a block (ggml.c, type_traits). A type that is not listed is newer
# than this table: of such a tensor only the beginning is checked.
_BLOCKS = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    9: (32, 36),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    15: (256, 292),
    16: (256, 66),
    17: (256, 74),
    18: (256, 98),
    19: (256, 50),
    20: (32, 18),
    21: (256, 110),
    22: (256, 82),
    23: (256, 136),
    24: (1, 1),
    25: (1, 2),
    26: (1, 4),
    27: (1, 8),
    28: (1, 8),
    29: (256, 56),
    30: (1, 2),
    34: (256, 54),
    35: (256, 66),
    39: (32, 17),
}
_MAX_COUNT = 1 << 32  # no real header counts more of anything


def check_file(path):
    """Trouble (bad_model) where a GGUF or safetensors file is damaged or cut off; other kinds of files pass."""
    try:
        if path.suffix == ".gguf":
            _check_gguf(path)
        elif path.suffix == ".safetensors":
            _check_safetensors(path)
    except RecursionError:
        raise Trouble("bad_model", f"{path} has a damaged header", "it is nested too deeply", _AGAIN) from None


def check_folder(path):
    """The same for a model directory: it has a config.json, and every weight file that its index names is whole."""
    if not (path / "config.json").is_file():
        raise Trouble("bad_model", f"{path} is no model directory", "it has no config.json", "check the model's path")
    named = set()
    for index in path.glob("*.safetensors.index.json"):
        try:
            named |= set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Trouble("bad_model", f"{index} cannot be read", repr(error), _AGAIN) from None
    missing = sorted(name for name in named if not (path / name).is_file())
    if missing:
        raise Trouble("bad_model", f"{path} lacks weight files", ", ".join(missing), _AGAIN)
    for file in sorted(path.glob("*.safetensors")):
        check_file(file)


class _Header:
    """Reads little-endian values; a file that ends too early is told as such."""

    def __init__(self, path, stream):
        self.path, self.stream = path, stream

    def bytes(self, count):
        """So many bytes."""
        data = self.stream.read(count) if count < _MAX_COUNT else b""
        if len(data) != count:
            size = self.path.stat().st_size
            raise Trouble("bad_model", f"{self.path} is cut off", f"it ends inside its header, at {size} bytes", _AGAIN)
        return data

    def number(self, kind):
        """One number of a struct format character."""
        return struct.unpack("<" + kind, self.bytes(struct.calcsize(kind)))[0]

    def count(self):
        """A 64-bit count that can be true."""
        value = self.number("Q")
        if value >= _MAX_COUNT:
            raise Trouble("bad_model", f"{self.path} is damaged", f"its header counts {value} of something", _AGAIN)
        return value

    def string(self):
        """A counted string."""
        return self.bytes(self.count())

    def value(self, kind):
        """A metadata value; only unsigned 32-bit numbers are returned, the rest is skipped."""
        if kind == _STRING:
            self.string()
        elif kind == _ARRAY:
            inner, count = self.number("I"), self.count()
            if inner in _VALUE_BYTES:
                self.skip(count * _VALUE_BYTES[inner])
            else:
                for _ in range(count):
                    self.value(inner)
        elif kind == 4:
            return self.number("I")
        elif kind in _VALUE_BYTES:
            self.skip(_VALUE_BYTES[kind])
        else:
            raise Trouble("bad_model", f"{self.path} is damaged", f"its header has a value of type {kind}", _AGAIN)
        return None

    def skip(self, count):
        """Go on without reading; an end that is jumped over is noticed with the next value."""
        self.stream.seek(count, 1)


def _check_gguf(path):
    size = path.stat().st_size
    with path.open("rb") as stream:
        header = _Header(path, stream)
        magic = header.bytes(4)
        if magic != b"GGUF":
            raise Trouble("bad_model", f"{path} is no GGUF file", f"it begins with {magic!r}", _AGAIN)
        version = header.number("I")
        if version not in (2, 3):
            advice = "convert it anew; a big-endian file does not work on this host"
            raise Trouble("bad_model", f"{path} has GGUF version {version}", "known are 2 and 3", advice)
        tensors, keys = header.count(), header.count()
        alignment = 32
        for _ in range(keys):
            name = header.string()
            value = header.value(header.number("I"))
            if name == b"general.alignment" and value:
                alignment = value
        ends = [0]
        for _ in range(tensors):
            header.string()
            elements = 1
            for _ in range(header.number("I")):
                elements *= header.number("Q")
            block, block_bytes = _BLOCKS.get(header.number("I"), (0, 0))
            ends.append(header.number("Q") + (elements // block * block_bytes if block else 0))
        begin = -(-stream.tell() // alignment) * alignment
    _compare(path, size, begin + max(ends))


def _check_safetensors(path):
    size = path.stat().st_size
    with path.open("rb") as stream:
        header = _Header(path, stream)
        length = header.number("Q")
        try:
            entries = json.loads(header.bytes(length))
            ends = [entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise Trouble("bad_model", f"{path} has a damaged header", repr(error), _AGAIN) from None
    _compare(path, size, 8 + length + max([0, *ends]))


def _compare(path, size, needed):
    if size < needed:
        proof = f"it has {size} bytes, its tensors reach to {needed}"
        raise Trouble("bad_model", f"{path} is cut off", proof, _AGAIN)
