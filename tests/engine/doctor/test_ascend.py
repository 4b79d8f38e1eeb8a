"""What a machine lacks for Ascend engines, on directories that look like such machines, one part missing at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pdcore.engine.doctor.ascend import ENGINES, PROGRAMS, VISIBLE, examine, hccn_addresses
from pdcore.engine.doctor.host import ThisHost
from pdcore.registry.doctor.finding import Finding

pytestmark = pytest.mark.unit

TOOLKIT = "/usr/local/Ascend/ascend-toolkit/latest"
TOOL = """#!/bin/sh
case "$2 $3" in
  "0 -ip") echo "ipaddr:10.0.0.1"; echo "netmask:255.255.255.0";;
  "1 -ip") echo "ipaddr:10.0.0.2"; echo "netmask:255.255.255.0";;
  *-link) echo "link status: UP";;
esac
"""
FILES = {
    "/usr/local/Ascend/driver/version.info": "Version=25.2.0\nascendhal_version=7\n",
    "/dev/davinci0": "",
    "/dev/davinci1": "",
    "/dev/davinci_manager": "",
    "/dev/devmm_svm": "",
    "/dev/hisi_hdc": "",
    f"{TOOLKIT}/lib64/libascendcl.so": "",
    f"{TOOLKIT}/version.cfg": "runtime_running_version=[8.2.0.1:8.2.RC1]\n",
    "/etc/hccn.conf": "address_0=10.0.0.1\nnetmask_0=255.255.255.0\naddress_1=10.0.0.2\n",
    "/usr/local/Ascend/driver/tools/hccn_tool": TOOL,
}
PACKAGES = ("mooncake", "mooncake.engine", "memfabric_hybrid")
ENVIRON = {"ASCEND_HOME_PATH": TOOLKIT, "PATH": "/usr/bin:/bin"}


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both libraries can be loaded."""
    (tmp_path / "packages" / "mooncake").mkdir(parents=True)
    for name in ("mooncake/__init__.py", "mooncake/engine.py", "memfabric_hybrid.py"):
        (tmp_path / "packages" / name).touch()
    for package in ENGINES.values():
        about = tmp_path / "packages" / f"{package.replace('-', '_')}-1.2.3.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2.3\n")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    kept = {name: sys.modules.pop(name) for name in PACKAGES if name in sys.modules}
    yield
    for name in PACKAGES:
        sys.modules.pop(name, None)
    sys.modules.update(kept)


def machine(root: Path, change: Mapping[str, str | None] = {}, environ: Mapping[str, str] = {}) -> ThisHost:
    for path, text in {**FILES, **change}.items():
        if text is not None:
            file = root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755)
    return ThisHost(environ={**ENVIRON, **environ}, root=root, also=PROGRAMS)


def failed(host: ThisHost, why: str | None = None) -> dict[str, Finding]:
    findings = examine(host, why_no_device=lambda: why)
    for finding in findings:
        assert finding.level == "ok" or finding.todo, finding
    return {finding.about: finding for finding in findings if finding.level == "fail"}


def test_a_machine_that_has_everything_is_told_what_it_has(tmp_path: Path) -> None:
    host = machine(tmp_path / "root", environ={VISIBLE: "1"})
    said = {finding.about: finding for finding in examine(host, why_no_device=lambda: None)}
    assert {finding.level for finding in said.values()} == {"ok"}
    assert said["driver"].says == "version 25.2.0"
    assert said["devices"].says == "2: 0, 1"
    assert "8.2.0.1" in said["CANN"].says
    assert said["NIC"].says == "1 ports have their addresses"


@pytest.mark.parametrize(
    ("change", "abouts", "says"),
    [
        ({"/usr/local/Ascend/driver/version.info": None}, {"driver"}, "no Ascend driver"),
        ({"/dev/davinci0": None, "/dev/davinci1": None}, {"devices", "NIC", "link"}, "/dev/davinciN"),
        ({"/dev/devmm_svm": None}, {"devices"}, "/dev/devmm_svm are missing"),
        ({f"{TOOLKIT}/lib64/libascendcl.so": None}, {"CANN"}, "no lib64/libascendcl.so"),
        ({"/etc/hccn.conf": None}, {"/etc/hccn.conf"}, "not there"),
        ({"/etc/hccn.conf": "address_0=10.0.0.1\n"}, {"/etc/hccn.conf"}, "no address for device 1"),
        ({"/etc/hccn.conf": "address_0=10.0.0.9\naddress_1=10.0.0.2\n"}, {"NIC"}, "device 0 does not have"),
        ({"/usr/local/Ascend/driver/tools/hccn_tool": None}, {"NIC", "link"}, "hccn_tool is not here"),
        (
            {"/usr/local/Ascend/driver/tools/hccn_tool": TOOL.replace("UP", "DOWN")},
            {"link"},
            "device 0, 1 is down",
        ),
        ({"/usr/local/Ascend/driver/tools/hccn_tool": "#!/bin/sh\nexit 1\n"}, {"NIC", "link"}, "device 0, 1"),
    ],
)
def test_each_missing_part_is_named_alone(
    tmp_path: Path, change: dict[str, str | None], abouts: set[str], says: str
) -> None:
    found = failed(machine(tmp_path / "root", change))
    assert set(found) == abouts
    assert any(says in finding.says for finding in found.values())


def test_a_toolkit_whose_environment_is_not_set_is_named(tmp_path: Path) -> None:
    host = machine(tmp_path / "root")
    unset = ThisHost(environ={"PATH": "/usr/bin:/bin"}, root=host.root, also=PROGRAMS)
    found = failed(unset)
    assert set(found) == {"CANN"}
    assert "set_env.sh" in str(found["CANN"].todo)


@pytest.mark.parametrize("visible", ["", "x", "0,,1", "2", "0,7"])
def test_devices_that_are_not_here_cannot_be_visible(tmp_path: Path, visible: str) -> None:
    found = failed(machine(tmp_path / "root", environ={VISIBLE: visible}))
    assert "visible devices" in found
    assert repr(visible) in found["visible devices"].says


def test_the_real_reason_of_torch_is_told(tmp_path: Path) -> None:
    found = failed(machine(tmp_path / "root"), "importing torch_npu failed: libhccl.so: cannot open")
    assert found["torch"].says.endswith("libhccl.so: cannot open")


def test_one_engine_that_can_be_loaded_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "memfabric_hybrid.py").write_text("raise OSError('libmf.so: cannot open')")
    monkeypatch.syspath_prepend(broken)
    host = machine(tmp_path / "root")
    said = {finding.about: finding for finding in examine(host, why_no_device=lambda: None)}
    assert said["transfer engines"].level == "warn"
    assert "libmf.so" in said["transfer engines"].says


def test_addresses_are_read_as_the_file_has_them() -> None:
    assert hccn_addresses(" address_10 = 1.2.3.4\n#address_3=9\nnetmask_1=x\naddress_2=5.6.7.8") == {
        10: "1.2.3.4",
        2: "5.6.7.8",
    }


def test_a_program_that_hangs_or_is_none_says_nothing(tmp_path: Path) -> None:
    host = machine(tmp_path / "root")
    assert host.run("/nowhere") is None
    assert host.run("false") is None
    assert host.program("sh") is not None
