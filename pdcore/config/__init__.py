"""Settings of every process: one table each, read once into a frozen dataclass.

A setting added to a table shows up in ``--help``, the environment and the file at once.
"""

from pdcore.config.cache import cache_directory, demo_model_directory
from pdcore.config.engine import ENGINE, EngineConfig
from pdcore.config.facade import FACADE, FacadeConfig
from pdcore.config.file import CONFIG_FILE
from pdcore.config.loading import SECTIONS, environment, load, options
from pdcore.config.process import COMMON, LISTEN, CommonConfig, ListenConfig
from pdcore.config.router import ROUTER, RouterConfig
from pdcore.config.setting import Setting
from pdcore.config.store import StoreAccess, StoreConfig
from pdcore.config.up import UP, UpConfig

__all__ = [
    "COMMON",
    "CONFIG_FILE",
    "ENGINE",
    "FACADE",
    "LISTEN",
    "ROUTER",
    "SECTIONS",
    "UP",
    "CommonConfig",
    "EngineConfig",
    "FacadeConfig",
    "ListenConfig",
    "RouterConfig",
    "Setting",
    "StoreAccess",
    "StoreConfig",
    "UpConfig",
    "cache_directory",
    "demo_model_directory",
    "environment",
    "load",
    "options",
]
