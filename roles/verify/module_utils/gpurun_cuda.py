"""CUDA through the driver's own library: a context on every GPU, and a kernel in it."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal

KERNEL = 'extern "C" __global__ void add(int *values) { values[threadIdx.x] += 40; }\n'
_THREADS = 32
_BYTES = 1 << 20


class CudaError(Exception):
    """A call of the driver's library that failed: its name for why, and the call."""


class Driver:
    """libcuda, with errors as exceptions."""

    def __init__(self, library="libcuda.so.1"):
        self._library = ctypes.CDLL(library)  # OSError where it is not there
        self.call("cuInit", 0)

    def call(self, name, *arguments):
        """Call a function; CudaError where it does not say success."""
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            known = self._library.cuGetErrorName(code, ctypes.byref(text)) == 0 and text.value
            raise CudaError(f"{name}: {text.value.decode() if known else 'error'} ({code})")

    def number(self, name, *arguments):
        """What a function gives back through its first argument."""
        value = ctypes.c_int()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value

    def devices(self):
        """Name and architecture of each GPU, as CUDA counts them."""
        for index in range(self.number("cuDeviceGetCount")):
            device, name = self.number("cuDeviceGet", index), ctypes.create_string_buffer(256)
            self.call("cuDeviceGetName", name, 256, device)
            major, minor = (self.number("cuDeviceGetAttribute", which, device) for which in (75, 76))
            yield device, {"name": name.value.decode(), "arch": f"sm_{major}{minor}"}

    def use(self, device, cubin):
        """A context, memory in it and, with a cubin, the kernel: whether that has computed what it should."""
        context, memory = ctypes.c_void_p(), ctypes.c_uint64()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        try:
            self.call("cuCtxSetCurrent", context)
            self.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(_BYTES))
            return self._run(memory, cubin) if cubin else None
        finally:
            self.call("cuDevicePrimaryCtxRelease_v2", device)  # frees what is in it

    def _run(self, memory, cubin):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        values = (ctypes.c_int * _THREADS)(*range(_THREADS))
        size = ctypes.c_size_t(ctypes.sizeof(values))
        self.call("cuModuleLoadData", ctypes.byref(module), cubin)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"add")
        self.call("cuMemcpyHtoD_v2", memory, values, size)
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(memory), ctypes.c_void_p))
        self.call("cuLaunchKernel", function, 1, 1, 1, _THREADS, 1, 1, 0, None, arguments, None)
        self.call("cuMemcpyDtoH_v2", values, memory, size)  # waits for the kernel
        return list(values) == [value + 40 for value in range(_THREADS)]


def probe(cubins=None):
    """What CUDA makes of the GPUs. `cubins`: architecture -> the kernel, compiled for it.

    `error` is null, or why there is no CUDA; each of `devices` has name, arch, `error`, and `kernel` (whether it has
    computed what it should; null where there was none to run).
    """
    devices = []
    try:
        driver = Driver()
        for device, known in driver.devices():
            try:
                found = driver.use(device, (cubins or {}).get(known["arch"]))
                devices.append({**known, "error": None, "kernel": found})
            except CudaError as error:
                devices.append({**known, "error": str(error), "kernel": None})
    except (OSError, AttributeError, CudaError) as error:
        return {"error": str(error), "devices": devices}
    return {"error": None, "devices": devices}


def apart(work, limit_s):
    """What `work` returns, from a process of its own: a driver may crash, or hang. Both are told as `error`."""
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(sink, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(sink)
    said = b""
    while select.select([source], [], [], limit_s)[0]:
        part = os.read(source, 65536)
        said += part
        if not part:
            break
    else:
        os.kill(pid, signal.SIGKILL)
        said = json.dumps({"error": f"no answer within {limit_s:g} s", "devices": []}).encode()
    os.close(source)
    status = os.waitpid(pid, 0)[1]
    if not said:
        said = json.dumps({"error": f"it crashed (signal {os.WTERMSIG(status)})", "devices": []}).encode()
    return json.loads(said)
