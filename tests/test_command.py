"""The command's first moment."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from pdcore.__main__ import main

pytestmark = pytest.mark.unit


class _Loading(ModuleType):
    """A module in the middle of whose loading somebody presses Ctrl-C."""

    def __getattr__(self, name: str) -> object:
        raise KeyboardInterrupt


def test_ctrl_c_while_modules_load_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pdcore.cli", _Loading("pdcore.cli"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "")
