"""An instance's settings as every other module meets them: read, with the address decided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pdcore.config import ENGINE, EngineConfig, demo_model_directory, load
from pdcore.config.loading import Default
from pdcore.engine.interfaces import own_address, read_interfaces
from pdcore.errors import ConfigError
from pdcore.interfaces import Interface


def read_settings(
    flags: Mapping[str, str | None],
    *,
    defaults: Mapping[str, Default] | None = None,
    ignored: list[str] | None = None,
    interfaces: Callable[[], Iterable[Interface]] = read_interfaces,
) -> EngineConfig:
    """The settings; ``host`` is what this machine listens on and advertises. ConfigError with every problem.

    Loopback unless somebody names an address or an interface, or the instance has several machines.
    """
    first = load_settings(flags, defaults=defaults, ignored=ignored)
    named = first.advertise_ip or (first.kv_ifname and own_address(interfaces(), first.kv_ifname))
    if not named and first.nnodes == 1:
        return first
    otherwise: Default = named or (lambda: own_address(interfaces(), None))
    config = load_settings(flags, defaults={**(defaults or {}), "host": otherwise})
    if named and config.host != named:
        raise ConfigError(
            f"--host / PDCORE_HOST: {config.host} is not {named}, which --advertise-ip or --kv-ifname names;"
            " an engine listens on the address that it advertises"
        )
    return config


def load_settings(
    flags: Mapping[str, str | None],
    *,
    defaults: Mapping[str, Default] | None = None,
    ignored: list[str] | None = None,
) -> EngineConfig:
    """The settings as they were given; without a model, the demo model where it has been made."""
    demo = demo_model_directory()
    known: dict[str, Default] = {"model": str(demo) if demo.is_dir() else None}
    config = load(
        EngineConfig,
        ENGINE,
        flags,
        section="engine",
        defaults={**known, **(defaults or {})},
        ignored=ignored,
    )
    if config.kv_tokens < config.block_size:
        block = f"one block of {config.block_size} tokens (--block-size)"
        raise ConfigError(f"--kv-tokens / PDCORE_KV_TOKENS: {config.kv_tokens} is less than {block}")
    return config
