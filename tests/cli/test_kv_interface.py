"""The interface that `pdcore up GROUP.yaml` tells a custom group's commands."""

from __future__ import annotations

import pytest

from pdcore.cli.kv_interface import kv_interface
from pdcore.engine.interfaces import read_interfaces
from pdcore.errors import ConfigError
from pdcore.group.spec import GroupSpec, spec_of

pytestmark = pytest.mark.integration


def spec(command: str, **network: str) -> GroupSpec:
    roles = [{"name": name, "run_command": command} for name in ("prefill", "decode", "router")]
    said = {"name": "g", "model": "m", "disaggregation": {"mode": "custom"}, "roles": roles}
    return spec_of({**said, "network": network})


def test_who_does_not_ask_is_told_nothing() -> None:
    assert kv_interface(spec("serve"), None) is None


def test_a_name_is_looked_for_on_this_machine() -> None:
    assert kv_interface(spec("serve --nic {{net_device}}", kv_transfer_ifname="lo"), None) == "lo"
    assert kv_interface(spec("serve --nic {{net_device}}", kv_transfer_ifname="no0"), "lo") == "lo"
    with pytest.raises(
        ConfigError, match=r"\{\{net_device\}\}: 'no0' is no interface of this machine, which has"
    ):
        kv_interface(spec("serve --nic {{net_device}}", kv_transfer_ifname="no0"), None)


def test_without_a_name_it_is_the_only_routable_one_or_a_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    candidates = [one for one in read_interfaces() if one.is_routable]
    asked = spec("serve --nic {{net_device}}")
    if len(candidates) > 1:
        with pytest.raises(ConfigError, match="interfaces that could carry KV"):
            kv_interface(asked, None)
        return
    expected = candidates[0].name if candidates else "lo"
    assert kv_interface(asked, None) == expected
    assert "--kv-transfer-ifname" in capsys.readouterr().err
