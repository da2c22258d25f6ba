"""Package repositories laid out as NVIDIA's and as a distribution's, signed, with small stand-ins under the real names.

A stand-in of a kernel module "builds" when the headers are there, and is "loaded" by the stand-in of modprobe that
tests/nvidia_machine.py puts on a host.
"""

from __future__ import annotations

import gzip
import hashlib
import http.server
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from urllib.parse import urlsplit

from tests.e2e.program import eventually
from tests.nvidia_machine import KERNEL

OFFICIAL = "https://developer.download.nvidia.com/compute/cuda/repos"
KEYRING = "cuda-keyring_1.1-1_all.deb"
_LIBCUDA = Path(__file__).parent / "fixtures/nvidia/libcuda.c"
_SMI = r"""#!/bin/sh
version=$(grep -o '[0-9]\{3\}[.][0-9.]*' /run/kernel/nvidia/version 2>/dev/null) || {
  echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."; exit 9; }
case $1 in *fabric*) version="Completed, Success" ;; esac
for class in /srv/machine/sys/bus/pci/devices/*/class; do
  case $(cat "$class") in 0x0300*|0x0302*) echo "$version" ;; esac
done
"""
# What holds an installation up for as long as a test wants.
_HOLD = "while [ -e /run/hold-postinst ]; do touch /run/postinst-runs; sleep 0.1; done"
_BUILD = f"#!/bin/sh\nset -e\n{_HOLD}\n"
_BUILD += """kernel=$(cat /srv/machine/proc/sys/kernel/osrelease)
[ -e /lib/modules/$kernel/build ] || {{ echo "no headers for $kernel" >&2; exit 10; }}
[ {version} != 580.99.99 ] || {{ echo "Error! Bad return status for module build on kernel: $kernel" >&2; exit 10; }}
cd /lib/modules/$kernel
mkdir -p updates/dkms
echo "NVRM version: NVIDIA UNIX {flavour}Kernel Module for x86_64  {version}  Release Build" > updates/dkms/nvidia.ko
"""
_CLEAN = "#!/bin/sh\nrm -f /lib/modules/*/updates/dkms/nvidia.ko\n"
_NVCC = r"""#!/bin/sh
case $1 in --version) echo "Cuda compilation tools, release 13.0, V13.0.88" ;; *) printf '\177ELF' > "$4" ;; esac
"""
_FM_PLACE = "lib/systemd/system/nvidia-fabricmanager.service"
_FM_UNIT = "[Unit]\nDescription=stand-in\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n"
_FM_UNIT += "[Install]\nWantedBy=multi-user.target\n"
_TOOLKIT = ("nvidia-container-toolkit", "nvidia-container-toolkit-base")
_TOOLKIT += ("libnvidia-container-tools", "libnvidia-container1")


class Repository:
    """A web server on `address` with repositories of its own; `url` is where NVIDIA's lie, `system` the distribution's.

    `asked` are the paths that were asked for.
    """

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.address = folder, address
        self.asked: list[str] = []
        self._gnupg = folder / "gnupg"
        self._gnupg.mkdir(mode=0o700, parents=True)
        self._agent = self._start_agent()
        self.root = folder / "www"
        self.root.mkdir()
        self._gpg("--passphrase", "", "--quick-gen-key", "stand-in <test@example>", "rsa2048", "sign", "never")
        self._server: http.server.ThreadingHTTPServer | None = None
        self.port = 0
        self.up()

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}/repos"

    def keyring_sha256(self, distribution: str) -> str:
        """Of the package that brings the key, or of the key itself."""
        place = self.root / f"repos/{distribution}/x86_64"
        (brings,) = [*place.glob(KEYRING), *place.glob("*.pub")]
        return hashlib.sha256(brings.read_bytes()).hexdigest()

    def _start_agent(self) -> subprocess.Popen[bytes]:
        """An agent that ends with the program that is returned, and that with us; gpg's own outlives a killed run."""
        here = ["--homedir", str(self._gnupg)]
        command = ["setpriv", "--pdeathsig", "KILL", "gpg-agent", *here, "--daemon", "sleep", "infinity"]
        watched = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ask = ["gpg-connect-agent", *here, "--no-autostart", "/bye"]
        eventually(lambda: not subprocess.run(ask, capture_output=True, check=False).stderr)
        return watched

    def up(self) -> None:
        asked = self.asked

        class Handler(http.server.SimpleHTTPRequestHandler):
            def log_message(self, format: str, *arguments: object) -> None:
                asked.append(self.path)

            def translate_path(self, path: str) -> str:
                return super().translate_path(urlsplit(path).path)  # as a proxy it is asked for a whole address

        served = partial(Handler, directory=str(self.root))
        self._server = http.server.ThreadingHTTPServer((self.address, self.port), served)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def down(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    # -- apt ----------------------------------------------------------------------------------------------------------

    def publish(self, distribution: str, versions: Iterable[str], suffix: str = "-1") -> None:
        """NVIDIA's repository of a Debian or Ubuntu, with these versions of the driver (and its index, signed)."""
        place = self.root / "repos" / distribution / "x86_64"
        place.mkdir(parents=True, exist_ok=True)
        if not (place / KEYRING).exists():
            self._keyring(place, distribution)
        for version in versions:
            names = _ubuntu(version) if distribution.startswith("ubuntu") else _debian(version)
            for name, one in names.items():
                self._deb(place, name, version + suffix, version, one)
        self._deb(place, "nvlsm", "2025.06.11-1", "", {})
        self._index(place)

    def publish_cuda(self, distribution: str) -> None:
        """CUDA 13.0 as it is, and a 13.9 that brings a driver along."""
        place = self.root / "repos" / distribution / "x86_64"
        nvcc = {"usr/local/cuda-13.0/bin/nvcc": _NVCC}
        self._deb(place, "cuda-nvcc-13-0", "13.0.88-1", "", {"files": nvcc})
        self._deb(place, "cuda-toolkit-13-0", "13.0.3-1", "", {"depends": "cuda-nvcc-13-0"})
        self._deb(place, "cuda-toolkit-13-9", "13.9.0-1", "", {"depends": "nvidia-driver-cuda"})
        self._index(place)

    def publish_system(self) -> None:
        """What the distribution itself has: headers and a compiler."""
        place = self.root / "system"
        place.mkdir(exist_ok=True)
        headers = {f"usr/src/linux-headers-{KERNEL}/include/x": "", f"lib/modules/{KERNEL}/build/include/x": ""}
        self._deb(place, f"linux-headers-{KERNEL}", "6.1.1-1", "", {"files": headers})
        self._deb(place, "linux-headers-amd64", "6.1.1-1", "", {"depends": f"linux-headers-{KERNEL}"})
        self._deb(place, "linux-headers-generic", "6.1.1-1", "", {"depends": f"linux-headers-{KERNEL}"})
        self._deb(place, "gcc-12", "12.2.0-14", "", {"files": {"usr/bin/gcc-12": "#!/bin/sh\n"}})
        self._deb(place, "infiniband-diags", "44.0-2", "", {})
        self._index(place)

    def publish_toolkit(self) -> str:
        """The repository of the container toolkit; returns its address."""
        place = self.root / "toolkit/stable/deb/amd64"
        place.mkdir(parents=True)
        key = subprocess.run(self._gpg_command("--export", "--armor"), check=True, capture_output=True).stdout
        (self.root / "toolkit/gpgkey").write_bytes(key)
        for name in _TOOLKIT:
            needs = {"depends": ", ".join(_TOOLKIT[1:])} if name == _TOOLKIT[0] else {}
            self._deb(place, name, "1.19.1-1", "", needs)
        self._index(place)
        return f"http://{self.address}:{self.port}/toolkit"

    def _keyring(self, place: Path, distribution: str) -> None:
        key = subprocess.run(self._gpg_command("--export"), check=True, capture_output=True).stdout
        line = "deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] "
        line += f"{OFFICIAL}/{distribution}/x86_64/ /\n"
        files: dict[str, str | bytes] = {
            "usr/share/keyrings/cuda-archive-keyring.gpg": key,
            f"etc/apt/sources.list.d/cuda-{distribution}-x86_64.list": line,
            "DEBIAN/conffiles": f"/etc/apt/sources.list.d/cuda-{distribution}-x86_64.list\n",
        }
        self._deb(place, "cuda-keyring", "1.1-1", "", {"files": files}, file=KEYRING)

    def _deb(self, place: Path, name: str, full: str, version: str, one: Mapping[str, object], file: str = "") -> None:
        tree = self.folder / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        control = f"Package: {name}\nVersion: {full}\nArchitecture: all\nSection: misc\nPriority: optional\n"
        control += "Maintainer: NVIDIA CORPORATION <cudatools@nvidia.com>\nDescription: stand-in\n"
        if one.get("depends"):
            control += f"Depends: {str(one['depends']).format(full=full)}\n"
        if one.get("conflicts"):
            control += f"Conflicts: {one['conflicts']}\nReplaces: {one['conflicts']}\n"
        files: dict[str, str | bytes] = {**one.get("files", {}), "DEBIAN/control": control}  # type: ignore[dict-item]
        if one.get("module"):
            flavour = "Open " if one["module"] == "open" else ""
            files["DEBIAN/postinst"] = _BUILD.format(version=version, flavour=flavour)
            files["DEBIAN/prerm"] = _CLEAN
        for path, content in files.items():
            target = tree / path.format(version=version)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content if isinstance(content, bytes) else content.encode())
            target.chmod(0o755 if "bin/" in path or path.endswith(("postinst", "prerm")) else 0o644)
        output = place / (file or f"{name}_{full}_all.deb")
        command = ["dpkg-deb", "--root-owner-group", "-Znone", "-b", str(tree), str(output)]
        subprocess.run(command, check=True, capture_output=True)

    def _index(self, place: Path) -> None:
        stanzas = []
        for deb in sorted(place.glob("*.deb")):
            control = subprocess.run(["dpkg-deb", "-f", str(deb)], check=True, capture_output=True, text=True).stdout
            content = deb.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            stanzas.append(f"{control}Filename: ./{deb.name}\nSize: {len(content)}\nSHA256: {digest}\n")
        packages = "\n".join(stanzas).encode()
        (place / "Packages").write_bytes(packages)
        (place / "Packages.gz").write_bytes(gzip.compress(packages))
        lines = ["Origin: NVIDIA", "Suite: stand-in", "Date: Thu, 01 Jan 2026 00:00:00 UTC", "SHA256:"]
        for name in ("Packages", "Packages.gz"):
            content = (place / name).read_bytes()
            lines.append(f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}")
        (place / "Release").write_text("\n".join(lines) + "\n")
        (place / "InRelease").unlink(missing_ok=True)
        self._gpg("--clearsign", "-o", str(place / "InRelease"), str(place / "Release"))

    # -- rpm ----------------------------------------------------------------------------------------------------------

    def publish_rpm(self, versions: Iterable[str]) -> None:
        """The same of the RPM family, 9 and 10, with CUDA: packages are signed one by one."""
        place = self.root / "repos/rhel9/x86_64"
        place.mkdir(parents=True, exist_ok=True)
        built = []
        for version in versions:
            # Debian, on which this is tried, does not look for libraries in lib64.
            lib = {f"/usr/lib64/libcuda.so.{version}": "", "/usr/lib/libcuda.so.1": libcuda(version)}
            lib["/usr/bin/nvidia-smi"] = _SMI
            build, needs = _BUILD.format(version=version, flavour="Open "), f"kmod-nvidia-open-dkms = 3:{version}-1.el9"
            built += [
                self._rpm(place, "kmod-nvidia-open-dkms", version, {}, "3", "dkms", build),
                self._rpm(place, "nvidia-driver-cuda", version, lib, "3", needs),
                self._rpm(place, "nvidia-fabricmanager", version, {f"/{_FM_PLACE}": _FM_UNIT}),
                self._rpm(place, "libnvidia-nscq", version, {}),
            ]
        built.append(self._rpm(place, "cuda-nvcc-13-0", "13.0.88", {"/usr/local/cuda-13.0/bin/nvcc": _NVCC}))
        built.append(self._rpm(place, "cuda-toolkit-13-0", "13.0.3", {}, requires="cuda-nvcc-13-0"))
        built.append(self._rpm(place, "cuda-toolkit-13-9", "13.9.0", {}, requires="nvidia-driver-cuda"))
        self._sign_rpms(built)
        subprocess.run(["createrepo_c", "-q", str(place)], check=True)
        other = shutil.copytree(place, self.root / "repos/rhel10/x86_64", dirs_exist_ok=True)
        (other / "D42D0685.pub").unlink(missing_ok=True)
        key = subprocess.run(self._gpg_command("--export", "--armor"), check=True, capture_output=True).stdout
        (place / "D42D0685.pub").write_bytes(key)
        (other / "CDF6BA43.pub").write_bytes(key)
        shutil.copytree(place, self.root / "repos/rhel8/x86_64", dirs_exist_ok=True)

    def publish_rpm_system(self) -> None:
        """What the distribution itself has: headers, compiler, and a package that is slow to install."""
        place = self.root / "system-rpm"
        place.mkdir(exist_ok=True)
        headers: dict[str, str | bytes] = {f"/lib/modules/{KERNEL}/build/include/x": ""}
        self._rpm(place, f"kernel-devel-matched-{KERNEL}", "1", headers)
        for name in ("gcc", "gcc-c++", "python3-dnf-plugin-versionlock"):
            self._rpm(place, name, "11", {})
        self._rpm(place, "dkms", "3", {})
        self._rpm(place, "shell", "5", {}, more="Provides: /bin/sh")  # which Debian's is not to rpm
        self._rpm(place, "slow", "1", {}, post=_HOLD)
        subprocess.run(["createrepo_c", "-q", str(place)], check=True)

    def publish_rpm_toolkit(self) -> None:
        """The repository of the container toolkit, beside that of apt: its index is signed, its packages are not."""
        place = self.root / "toolkit/stable/rpm/x86_64"
        place.mkdir(parents=True)
        for name in _TOOLKIT:
            self._rpm(place, name, "1.19.1", {}, requires=", ".join(_TOOLKIT[1:]) if name == _TOOLKIT[0] else "")
        subprocess.run(["createrepo_c", "-q", str(place)], check=True)
        self._gpg("--detach-sign", "--armor", str(place / "repodata/repomd.xml"))

    def _rpm(
        self,
        place: Path,
        name: str,
        version: str,
        files: Mapping[str, str | bytes],
        epoch: str = "0",
        requires: str = "",
        post: str = "",
        more: str = "",
    ) -> Path:
        top = self.folder / "rpmbuild"
        shutil.rmtree(top, ignore_errors=True)
        top.mkdir()
        spec = f"Name: {name}\nVersion: {version}\nRelease: 1.el9\nEpoch: {epoch}\nSummary: stand-in\nLicense: none\n"
        spec += "Vendor: NVIDIA Corporation\nBuildArch: noarch\nAutoReqProv: no\n"
        spec += f"Requires: {requires}\n" if requires else ""
        spec += f"{more}\n%description\nstand-in\n%install\nmkdir -p %{{buildroot}}\n"
        for number, (path, content) in enumerate(files.items()):
            (top / str(number)).write_bytes(content if isinstance(content, bytes) else content.encode())
            mode = 755 if "/bin/" in path else 644
            spec += f"install -D -m {mode} {top}/{number} %{{buildroot}}{path}\n"
        spec += f"%post\n{post}\n" if post else ""
        # The next version's is built before this one goes.
        spec += f"%preun\ngrep -l '  {version} ' /lib/modules/*/updates/dkms/nvidia.ko | xargs -r rm\n" if post else ""
        spec += "%files\n" + "".join(f"{path}\n" for path in files)
        (top / "x.spec").write_text(spec)
        command = ["rpmbuild", "-bb", "--quiet", "--define", f"_topdir {top}", "--define", f"_rpmdir {place}"]
        command += ["--define", "_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.noarch.rpm", str(top / "x.spec")]
        subprocess.run(command, check=True, capture_output=True)
        return place / f"{name}-{version}-1.el9.noarch.rpm"

    def _sign_rpms(self, paths: Iterable[Path]) -> None:
        macros = {"_gpg_name": "stand-in", "_gpg_path": str(self._gnupg), "__gpg": str(shutil.which("gpg"))}
        command = ["rpmsign", "--addsign", *(f"--define={name} {value}" for name, value in macros.items())]
        subprocess.run([*command, *map(str, paths)], check=True, capture_output=True)

    def _gpg_command(self, *words: str) -> list[str]:
        return ["gpg", "--homedir", str(self._gnupg), "--batch", "--yes", "--quiet", *words]

    def _gpg(self, *words: str) -> None:
        subprocess.run(self._gpg_command(*words), check=True, capture_output=True)

    def close(self) -> None:
        self.down()
        subprocess.run(["gpgconf", "--homedir", str(self._gnupg), "--kill", "all"], check=False, capture_output=True)
        self._agent.kill()
        self._agent.wait()


@cache
def libcuda(version: str) -> bytes:
    """A stand-in of the driver's library that works with a module of this version only."""
    with tempfile.TemporaryDirectory() as folder:
        target = f"{folder}/libcuda.so.1"
        build = ["gcc", "-shared", "-fPIC", "-O1", f'-DVERSION="  {version}  "', "-o", target, str(_LIBCUDA)]
        subprocess.run(build, check=True)
        return Path(target).read_bytes()


def _libcuda(version: str) -> dict[str, str | bytes]:
    place = "usr/lib/x86_64-linux-gnu/libcuda.so"
    return {f"{place}.{version}": "", f"{place}.1": libcuda(version)}


def _debian(version: str) -> dict[str, dict[str, object]]:
    libcuda = _libcuda(version)
    unit = {_FM_PLACE: _FM_UNIT}
    return {
        "libcuda1": {"files": libcuda},
        "nvidia-kernel-open-dkms": {"module": "open", "conflicts": "nvidia-kernel-dkms"},
        "nvidia-kernel-dkms": {"module": "proprietary", "conflicts": "nvidia-kernel-open-dkms"},
        "nvidia-driver-cuda": {"depends": "libcuda1 (= {full}), nvidia-smi (= {full})"},
        "nvidia-smi": {"files": {"usr/bin/nvidia-smi": _SMI}},
        "nvidia-persistenced": {},
        "nvidia-fabricmanager": {"files": unit},
        "libnvidia-nscq": {},
    }


def _ubuntu(version: str) -> dict[str, dict[str, object]]:
    """The names changed at 590: until then they had the branch in them."""
    branch = version.partition(".")[0]
    tag = f"-{branch}" if int(branch) < 590 else ""
    other = {"": "-580", "-580": ""}.get(tag, "")
    libcuda = _libcuda(version)
    module = f"nvidia-dkms{tag}-open" if tag else "nvidia-dkms-open"
    rival = "nvidia-dkms-open" if tag else "nvidia-dkms-580-open"
    return {
        f"libnvidia-compute{tag}": {"files": libcuda, "conflicts": f"libnvidia-compute{other}"},
        module: {"module": "open", "conflicts": rival},
        f"nvidia-utils{tag}": {"conflicts": f"nvidia-utils{other}"},
    }
