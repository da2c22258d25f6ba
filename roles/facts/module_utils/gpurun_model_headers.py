"""What a model's files say about its size, without its weights: config.json and the headers of safetensors or GGUF.

Standard library only, Python >= 3.9: it runs on a host beside a model, and on the controller.
https://huggingface.co/docs/safetensors (format), https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

MAX_HEADER = 256 * 1024 * 1024  # of safetensors; the format itself allows 100 MB
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_KEPT = 4096  # longer arrays of a GGUF file (the vocabulary) are read over
_ODD = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError),
    *(OSError, RecursionError, MemoryError, struct.error),
)
_LAYER = re.compile(r"\b(?:layers|h|blocks|blk)\.(\d+)\.")

QUANTIZATION = "hf_quant_config.json"  # where NVIDIA's checkpoints say it, and engines look for it


def describe_all(paths, home):
    """Path -> description of each of these models, and of those in gpurun's folder, that can be read."""
    try:
        own = sorted(Path(home).expanduser().glob("models/*/.complete"))
    except PermissionError:  # another user's
        own = []
    places = [str(Path(path).expanduser()) for path in paths]
    for folder in (each.parent for each in own):
        ggufs = sorted(str(each) for each in folder.rglob("*.gguf"))
        places += [str(folder)] if (folder / "config.json").is_file() else ggufs
    found = {}
    for place in places:
        try:
            found[place] = describe(place)
        except _ODD:  # whatever lies there, the host's other facts are wanted
            continue
    return found


def describe(path):
    """The description of the model at `path`, a folder or a GGUF file. ValueError says what is wrong with it."""
    place = Path(path)
    if place.is_file():
        return describe_gguf(place)
    if not place.is_dir():
        raise ValueError("there is no such file or folder")
    files = {name: place / name for name in (each.name for each in place.iterdir())}
    if "config.json" not in files:
        ggufs = sorted(name for name in files if name.endswith(".gguf"))
        if ggufs:
            return describe_gguf(files[ggufs[0]])
        raise ValueError("it has neither config.json nor a .gguf file")
    return describe_safetensors(sorted(files), lambda name: files[name].open("rb"))


def describe_safetensors(names, open_file):
    """The same for a repository: `names` are its files, `open_file` gives one as a binary stream."""
    with open_file("config.json") as stream:
        config = _json(stream.read(), "config.json")
    if QUANTIZATION in names and "quantization_config" not in config:
        with open_file(QUANTIZATION) as stream:
            config["quantization_config"] = _json(stream.read(), QUANTIZATION).get("quantization")
    wanted = [name for name in names if name.endswith(".safetensors")]
    if "model.safetensors.index.json" in names:
        with open_file("model.safetensors.index.json") as stream:
            index = _json(stream.read(), "model.safetensors.index.json")
        shards = index.get("weight_map", {})
        if not isinstance(shards, dict):
            raise ValueError("model.safetensors.index.json has no mapping `weight_map`")
        wanted = sorted(set(shards.values())) or wanted
    if not wanted:
        raise ValueError("it has a config.json and no .safetensors file, whose headers tell the sizes of the weights")
    found = {}
    for name in wanted:
        with open_file(name) as stream:
            for tensor, about in safetensors_header(stream, name).items():
                begin, end = about["data_offsets"]
                elements = 1
                for size in about["shape"]:
                    elements *= size
                _add(found, config, tensor, str(about["dtype"]), elements, end - begin)
    return {"format": "safetensors", "config": config, "tensors": _rows(found)}


def safetensors_header(stream, name):
    """Tensor -> {dtype, shape, data_offsets}."""
    size = stream.read(8)
    length = struct.unpack("<Q", size)[0] if len(size) == 8 else 0
    if not 2 <= length <= MAX_HEADER:
        raise ValueError(f"{name} has no safetensors header (a Git LFS pointer?)")
    header = _json(stream.read(length), name)
    header.pop("__metadata__", None)
    return header


def describe_gguf(path):
    """The same for a GGUF file and, where it is one of several parts, the others beside it."""
    parts = [path]
    split = re.match(r"(.*)-00001-of-(\d+)\.gguf$", path.name)
    if split:
        parts = [path.with_name(f"{split[1]}-{n:05d}-of-{split[2]}.gguf") for n in range(1, int(split[2]) + 1)]
    config, found = {}, {}
    for part in parts:
        with part.open("rb") as stream:
            keys, tensors = gguf_header(stream, part.stat().st_size, part.name)
        config = config or {key: value for key, value in keys.items() if not key.startswith("tokenizer.")}
        for tensor, kind, elements, size in tensors:
            _add(found, {}, tensor, f"ggml{kind}", elements, size)
    return {"format": "gguf", "config": config, "tensors": _rows(found)}


def gguf_header(stream, file_size, name="the file"):
    """Its keys, without long arrays, and its tensors: [name, type, elements, bytes].

    A tensor's bytes are up to the next one's offset, so that no table of quantisations is needed.
    """

    def read(form):
        data = stream.read(struct.calcsize("<" + form))
        try:
            return struct.unpack("<" + form, data)[0]
        except struct.error:
            raise ValueError(f"{name} ends in the middle of its header") from None

    def text():
        length = read("Q")
        if length > file_size:
            raise ValueError(f"{name} ends in the middle of its header")
        return stream.read(length).decode("utf-8", "replace")

    def value(kind):
        if kind == _STRING:
            return text()
        if kind != _ARRAY:
            if kind not in _SCALARS:
                raise ValueError(f"{name} has a key of unknown type {kind}")
            return read(_SCALARS[kind])
        inner, length = read("I"), read("Q")
        if inner in _SCALARS and length > _KEPT:
            stream.seek(struct.calcsize("<" + _SCALARS[inner]) * length, 1)
            return None
        items = []
        for _ in range(length):
            item = value(inner)
            if length <= _KEPT:
                items.append(item)
        return items if length <= _KEPT else None

    if stream.read(4) != b"GGUF":
        raise ValueError(f"{name} is no GGUF file")
    version = read("I")
    if version not in (2, 3):
        raise ValueError(f"{name} is GGUF version {version}; 2 and 3 are known")
    count, key_count = read("Q"), read("Q")
    keys = {}
    for _ in range(key_count):
        key = text()
        found = value(read("I"))
        if found is not None:
            keys[key] = found
    tensors = []
    for _ in range(count):
        tensor, elements = text(), 1
        for _ in range(read("I")):
            elements *= read("Q")
        tensors.append((tensor, read("I"), elements, read("Q")))
    align = int(keys.get("general.alignment", 32))
    begin = -(-stream.tell() // align) * align
    if any(begin + offset > file_size for *_, offset in tensors):
        raise ValueError(f"{name} is shorter than its header says: it is not whole")
    ends = sorted({offset for *_, offset in tensors} | {file_size - begin})
    after = dict(zip(ends, ends[1:]))
    return keys, [(tensor, kind, elements, after.get(at, at) - at) for tensor, kind, elements, at in tensors]


def _json(data, name):
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError(f"{name} is no JSON") from None
    if not isinstance(found, dict):
        raise ValueError(f"{name} holds no mapping")
    return found


def _add(found, config, tensor, dtype, elements, size):
    """Count a tensor with those that differ in their layer or expert only; layers beyond the last are a draft's."""
    inner = config.get("text_config")
    inner = inner if isinstance(inner, dict) else config
    layers, layer = inner.get("num_hidden_layers"), _LAYER.search(tensor)
    draft = "mtp." if layer and isinstance(layers, int) and int(layer[1]) >= layers and "visual" not in tensor else ""
    key = (draft + re.sub(r"\b\d+\b", "*", tensor), dtype)
    row = found.setdefault(key, [0, 0, 0])
    row[0] += 1
    row[1] += elements
    row[2] += size


def _rows(found):
    """[name, dtype, count, elements, bytes], sorted."""
    return [[name, dtype, *row] for (name, dtype), row in sorted(found.items())]
