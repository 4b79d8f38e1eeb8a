"""How to reach a store: the settings of the keyspace's, and of the optional Redis beside it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from pdcore.config.setting import Setting, seconds, text

STORE: Final = (
    Setting(
        name="store",
        help="Where the keyspace lives: etcd://HOST:PORT[,HOST:PORT...], or redis://HOST:PORT[/DB] (rediss:// with TLS).",
        parse=text,
        default="etcd://127.0.0.1:2379",
        metavar="URL",
    ),
    Setting(name="store_user", help="Who to log in to the store as.", parse=text, metavar="USER"),
    Setting(
        name="store_password",
        help="That user's password; not a flag, where everybody could read it.",
        parse=text,
        secret=True,
    ),
    Setting(
        name="store_ca",
        help="PEM file of the authorities that sign the store's certificate; TLS is used when it is given.",
        parse=text,
        metavar="FILE",
    ),
    Setting(name="store_cert", help="PEM file of our own certificate, for mTLS.", parse=text, metavar="FILE"),
    Setting(name="store_key", help="PEM file of that certificate's key.", parse=text, metavar="FILE"),
    Setting(
        name="store_timeout_s",
        help="Deadline of one call to the store.",
        parse=seconds(0.1, 60),
        default="3",
        metavar="SECONDS",
    ),
)

REDIS: Final = (
    Setting(
        name="redis",
        help="A Redis for the journal and the room directory: redis://HOST:PORT[/DB]; none unless given.",
        parse=text,
        metavar="URL",
    ),
    Setting(name="redis_user", help="Who to log in to that Redis as.", parse=text, metavar="USER"),
    Setting(
        name="redis_password",
        help="That user's password; not a flag, where everybody could read it.",
        parse=text,
        secret=True,
    ),
    Setting(
        name="redis_ca",
        help="PEM file of the authorities that sign its certificate (rediss://).",
        parse=text,
        metavar="FILE",
    ),
    Setting(
        name="redis_cert", help="PEM file of our own certificate there, for mTLS.", parse=text, metavar="FILE"
    ),
    Setting(name="redis_key", help="PEM file of that certificate's key.", parse=text, metavar="FILE"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAccess:
    """Everything needed to open one store. ``timeout_s`` bounds one call; files are PEM. Shown without the password."""

    url: str
    timeout_s: float
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def with_timeout(self, timeout_s: float) -> StoreAccess:
        """The same store with another deadline per call."""
        return replace(self, timeout_s=timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLogin:
    """How to reach a store that is named elsewhere, and the Redis beside it if there is one."""

    store_user: str | None = None
    store_password: str | None = field(default=None, repr=False)
    store_ca: str | None = None
    store_cert: str | None = None
    store_key: str | None = None
    store_timeout_s: float
    redis: str | None = None
    redis_user: str | None = None
    redis_password: str | None = field(default=None, repr=False)
    redis_ca: str | None = None
    redis_cert: str | None = None
    redis_key: str | None = None

    def access_to(self, url: str) -> StoreAccess:
        """How to open the store at ``url``."""
        return StoreAccess(
            url=url,
            timeout_s=self.store_timeout_s,
            user=self.store_user,
            password=self.store_password,
            ca=self.store_ca,
            cert=self.store_cert,
            key=self.store_key,
        )

    @property
    def redis_access(self) -> StoreAccess | None:
        """How to open the Redis for journal and rooms; None when there is none."""
        if self.redis is None:
            return None
        return StoreAccess(
            url=self.redis,
            timeout_s=self.store_timeout_s,
            user=self.redis_user,
            password=self.redis_password,
            ca=self.redis_ca,
            cert=self.redis_cert,
            key=self.redis_key,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig(StoreLogin):
    """Where the keyspace is."""

    store: str

    @property
    def store_access(self) -> StoreAccess:
        """How to open the keyspace's store."""
        return self.access_to(self.store)
