"""What an engine needs on a machine with Ascend devices: driver, CANN, network configuration, ports, packages.

Everything is looked at, also behind a first failure; what cannot be looked at because of another is said to be so.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pdcore.engine.doctor.host import Host
from pdcore.registry.doctor.finding import Finding, fail, ok, warn

DRIVER: Final = "/usr/local/Ascend/driver"
TOOLKITS: Final = (
    "/usr/local/Ascend/ascend-toolkit/latest",
    "/usr/local/Ascend/cann",
    "/usr/local/Ascend/latest",
)
HCCN: Final = "/etc/hccn.conf"
PROGRAMS: Final = (f"{DRIVER}/tools", "/usr/local/sbin", "/usr/local/bin")
ENGINES: Final = {"mooncake.engine": "mooncake-transfer-engine-npu", "memfabric_hybrid": "memfabric_hybrid"}
"""Modules that move bytes between devices, and the packages that bring them."""
VISIBLE: Final = "ASCEND_RT_VISIBLE_DEVICES"

_INSTALL_DRIVER: Final = (
    "install the Ascend HDK driver and firmware, then reboot; in a container, start it with the devices"
)
_INSTALL_CANN: Final = "install the CANN toolkit that fits the driver, and `source /usr/local/Ascend/ascend-toolkit/set_env.sh` where engines start"


@dataclass(frozen=True, slots=True)
class Devices:
    """The numbers of this machine's devices, and of those this process may use."""

    all: tuple[int, ...]
    visible: tuple[int, ...]


def examine(host: Host, *, why_no_device: Callable[[], str | None]) -> tuple[Finding, ...]:
    """Everything there is to say. ``why_no_device`` says what keeps an engine from computing there."""
    devices = found_devices(host)
    return (
        *_driver(host, devices),
        *_visible(host, devices),
        *_toolkit(host),
        *_torch(why_no_device),
        *_hccn(host, devices),
        *_ports(host, devices),
        *_packages(),
    )


def found_devices(host: Host) -> Devices:
    """By their device files."""
    numbers = [re.search(r"/davinci(\d+)$", path) for path in host.paths("/dev/davinci*")]
    every = tuple(sorted(int(number[1]) for number in numbers if number is not None))
    said = host.environ.get(VISIBLE)
    return Devices(every, every if said is None else _numbers(said))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip().isdigit())


def _driver(host: Host, devices: Devices) -> Iterator[Finding]:
    said = host.text(f"{DRIVER}/version.info")
    version = None if said is None else re.search(r"^Version=(\S+)", said, re.MULTILINE)
    if said is None:
        yield fail(
            "driver", f"{DRIVER}/version.info is not there: no Ascend driver is installed", _INSTALL_DRIVER
        )
    else:
        yield ok("driver", f"version {version[1] if version else 'unknown'}")
    if not devices.all:
        yield fail(
            "devices",
            "there is no /dev/davinciN",
            "npu-smi info shows what the driver finds; a container needs --device /dev/davinciN, /dev/davinci_manager, "
            "/dev/devmm_svm and /dev/hisi_hdc",
        )
        return
    missing = [
        path for path in ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc") if not host.paths(path)
    ]
    if missing:
        yield fail("devices", f"{' and '.join(missing)} are missing", "give the container these devices too")
    else:
        yield ok("devices", f"{len(devices.all)}: {_listed(devices.all)}")


def _visible(host: Host, devices: Devices) -> Iterator[Finding]:
    said = host.environ.get(VISIBLE)
    if said is None:
        return
    unknown = sorted(set(devices.visible) - set(devices.all))
    if not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", said) or unknown:
        yield fail(
            "visible devices",
            f"{VISIBLE}={said!r} names what is not here"
            if unknown
            else f"{VISIBLE}={said!r} is no list of numbers",
            f"name some of {_listed(devices.all) or 'the devices, once there are some'}, separated by commas",
        )
    else:
        yield ok("visible devices", f"{_listed(devices.visible)}; ranks count from 0 among them")


def _toolkit(host: Host) -> Iterator[Finding]:
    named = [
        host.environ[name] for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME") if host.environ.get(name)
    ]
    here = [path for path in (*named, *TOOLKITS) if host.paths(path)]
    if not here:
        tried = ", ".join((*named, *TOOLKITS))
        yield fail("CANN", f"no toolkit is at {tried}", _INSTALL_CANN)
        return
    library = host.paths(f"{here[0]}/lib64/libascendcl.so") or host.paths(f"{here[0]}/*/lib64/libascendcl.so")
    if not library:
        yield fail("CANN", f"{here[0]} has no lib64/libascendcl.so", _INSTALL_CANN)
    elif not named:
        yield fail(
            "CANN", f"{here[0]} is there, but its environment is not set", _INSTALL_CANN.partition("and ")[2]
        )
    else:
        yield ok("CANN", f"{_toolkit_version(host, here[0])} at {here[0]}")


def _toolkit_version(host: Host, path: str) -> str:
    for file in (f"{path}/version.cfg", f"{path}/ascend_toolkit_install.info", f"{path}/version.info"):
        found = re.search(r"(?i)version[^=]*=\[?([\w.:]+)", host.text(file) or "")
        if found is not None:
            return found[1]
    return "unknown version"


def _torch(why_no_device: Callable[[], str | None]) -> Iterator[Finding]:
    why = why_no_device()
    if why is None:
        yield ok("torch", "torch_npu computes here")
    else:
        yield fail("torch", why, "mend what is above first; then pip install 'pdcore[engine,ascend]'")


def _hccn(host: Host, devices: Devices) -> Iterator[Finding]:
    text = host.text(HCCN)
    if text is None:
        yield fail(
            HCCN,
            "it is not there: the devices' network ports have no addresses",
            "for each device: hccn_tool -i N -ip -s address A.B.C.D netmask M; a container needs the file mounted",
        )
        return
    addresses = hccn_addresses(text)
    without = [number for number in devices.all if number not in addresses]
    if without:
        yield fail(
            HCCN,
            f"it has no address for device {_listed(without)}",
            f"hccn_tool -i {without[0]} -ip -s address A.B.C.D netmask M",
        )
    else:
        yield ok(HCCN, f"addresses of {len(addresses)} devices")


def hccn_addresses(text: str) -> dict[int, str]:
    """Device numbers and the addresses of their ports."""
    found = re.findall(r"^\s*address_(\d+)\s*=\s*(\S+)", text, re.MULTILINE)
    return {int(number): address for number, address in found}


def _ports(host: Host, devices: Devices) -> Iterator[Finding]:
    tool = host.program("hccn_tool")
    if tool is None or not devices.all:
        why = "hccn_tool is not here" if tool is None else "there are no devices"
        todo = "it comes with the driver" if tool is None else "mend the driver first"
        yield fail("NIC", f"the devices' ports cannot be asked for their addresses: {why}", todo)
        yield fail("link", f"the devices' ports cannot be asked whether they are up: {why}", todo)
        return
    configured = hccn_addresses(host.text(HCCN) or "")
    wrong = [
        number for number in devices.visible if not _has_address(host, tool, number, configured.get(number))
    ]
    if wrong:
        yield fail(
            "NIC",
            f"device {_listed(wrong)} does not have the address that {HCCN} says",
            f"hccn_tool -i {wrong[0]} -ip -g shows what it has; hccn_tool -i {wrong[0]} -ip -s … sets it",
        )
    else:
        yield ok("NIC", f"{len(devices.visible)} ports have their addresses")
    down = [number for number in devices.visible if not _is_up(host, tool, number)]
    if down:
        yield fail(
            "link",
            f"the port of device {_listed(down)} is down",
            f"hccn_tool -i {down[0]} -link -g; look at the cable, the optical module and the switch's port",
        )
    else:
        yield ok("link", f"{len(devices.visible)} ports are up")


def _has_address(host: Host, tool: str, number: int, address: str | None) -> bool:
    said = host.run(tool, "-i", str(number), "-ip", "-g") or ""
    found = re.search(r"ipaddr:\s*(\S+)", said)
    return found is not None and address in (None, found[1])


def _is_up(host: Host, tool: str, number: int) -> bool:
    return re.search(r"link status:\s*UP", host.run(tool, "-i", str(number), "-link", "-g") or "") is not None


def _packages() -> Iterator[Finding]:
    """The engines that move KV between devices; one of them is enough."""
    broken = [why for module, package in ENGINES.items() if (why := _why_not(module, package)) is not None]
    if len(broken) == len(ENGINES):
        yield fail(
            "transfer engines",
            "; ".join(broken),
            "pip install 'pdcore[ascend]', and not the extra mooncake beside it",
        )
    elif broken:
        yield warn("transfer engines", broken[0], "the other one is there; name it with --transfer-engine")
    else:
        yield ok("transfer engines", "mooncake and memfabric can be loaded")


def _why_not(module: str, package: str) -> str | None:
    """Other builds of Mooncake have modules of the same name."""
    try:
        importlib.metadata.version(package)
        importlib.import_module(module)
    except importlib.metadata.PackageNotFoundError:
        return f"{package} is not installed"
    except (ImportError, OSError) as wrong:
        return f"{package}: {wrong}"
    return None


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
