"""API keys from flags, and from a file that may change while the server runs. Independent of HTTP.

Only SHA-256 digests are kept. A key is random (`lightwell key` makes 256 bits), so a plain digest is enough: there is
no dictionary to try.

    # keys.toml: one table for each key, with its name in logs and metrics
    [search-team]
    hash = "sha256:..."           # printed by `lightwell key`
    max_requests = 8              # in flight at once; default: no limit
    tokens_per_minute = 60000     # prompt and generated; default: no limit
    min_priority = -10            # its requests' earliest (lowest); default: by --allow-priority
    expires = 2027-01-31          # a day or a time, UTC by default; default: never
    admin = true                  # may use /admin/...; default: false
"""

import hashlib
import hmac
import logging
import os
import re
import secrets
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from lightwell.model.checkpoint.files import open_file
from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.server.config.auth.quotas import PRIORITIES, KeyLimits, KeyUse

logger = logging.getLogger(__name__)

MAX_KEYS = 1000
"""The most keys. Each request's key is compared with all of them, about 0.2 us each."""
_MAX_FILE_BYTES = 1 << 20
_MAX_LIMIT = 2**53
"""The largest limit of a key: the last integer up to which a float counts."""
_CHECK_INTERVAL = 1.0
"""Seconds between two checks of the file."""
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(r"(?!key-\d)[A-Za-z0-9_-]{1,64}")  # no quotes in TOML; not a name of --api-key's
_NUMBERED = re.compile(r"key-\d")
_FIELDS = ("hash", "max_requests", "tokens_per_minute", "min_priority", "expires", "admin")


class KeyFileError(ValueError):
    """The key file cannot be used; the message is one line with the file, the entry and the accepted values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """One key. `digest` is the SHA-256 of its bytes, `expires` seconds since 1970 or None for never."""

    name: str
    digest: bytes
    is_admin: bool = False
    expires: float | None = None
    limits: KeyLimits = field(default_factory=KeyLimits)

    @property
    def owner(self) -> str:
        """Return the owner of stored files: the name in the key file, or the digest of a key of --api-key. The name of
        such a key is only its place among the flags.
        """
        return f"sha256:{self.digest.hex()}" if _NUMBERED.match(self.name) else self.name

    @property
    def is_expired(self) -> bool:
        return self.expires is not None and time.time() >= self.expires


@dataclass(slots=True)
class KnownKey:
    """A key and its present use."""

    key: ApiKey
    use: KeyUse


def new_key() -> str:
    """Return a random key of 256 bits."""
    return f"lw-{secrets.token_urlsafe(32)}"


def hash_of(key: str) -> str:
    """Return the key as it is written to a file: `sha256:` and 64 hexadecimal digits."""
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def key_entry(name: str, key: str, *, is_admin: bool) -> str:
    """Return a key file's entry for a key. Raises KeyFileError for a bad name."""
    fields: dict[str, object] = {"hash": hash_of(key)} | ({"admin": True} if is_admin else {})
    _read_key(name, fields, repr(name))
    return f'[{name}]\nhash = "{hash_of(key)}"\n' + ("admin = true\n" if is_admin else "")


class Keyring:
    """All keys of the server: those in `hashes`, which never change, and the present keys of the file.

    The first request after a change reads the file again, within a second. A file that cannot be used changes nothing:
    the error is logged and counted, and the keys read before remain valid. A keyring belongs to one event loop.
    """

    def __init__(
        self, hashes: Sequence[str] = (), file: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Read the file. Raises KeyFileError: a server must not start open, or closed to all, because of a slip."""
        self._fixed = [ApiKey(name=f"key-{i}", digest=_digest(text)) for i, text in enumerate(hashes, 1)]
        self._file = file
        self._clock = clock
        self._signature: tuple[int, ...] | None = None
        self._checked_at = clock()
        self.known: list[KnownKey] = []
        self.file_errors = 0
        """How often the file was found unusable."""
        if file is None:
            self._replace(self._fixed)
        else:
            self._load(file)

    @property
    def is_open(self) -> bool:
        """Return whether no key is needed."""
        return not self._fixed and self._file is None

    @property
    def has_admin(self) -> bool:
        self._reload_if_changed()  # so that the first admin key in the file opens its routes
        return any(known.key.is_admin for known in self.known)

    def find(self, given: bytes) -> KnownKey | None:
        """Return the key with these bytes, expired or not, or None.

        The digests of all keys are compared, each in constant time, so that the time reveals nothing about them.
        """
        self._reload_if_changed()
        digest = hashlib.sha256(given).digest()
        matches = [known for known in self.known if hmac.compare_digest(digest, known.key.digest)]
        return matches[0] if matches else None

    def owned_by(self, owner: str) -> KnownKey | None:
        """Return the present key of an owner (`ApiKey.owner`), expired or not, or None."""
        self._reload_if_changed()
        return next((known for known in self.known if known.key.owner == owner), None)

    def use_of(self, name: str) -> KeyUse | None:
        """Return the use of the present key with this name, or None."""
        self._reload_if_changed()
        return next((known.use for known in self.known if known.use.name == name), None)

    async def begin(self, known: KnownKey, *, takes_tokens: bool, is_background: bool = False) -> None:
        """Count a request of a key in (`KeyUse.begin`); `end` counts it out. Raises LimitReached."""
        known.use.begin(takes_tokens=takes_tokens, is_background=is_background)

    def end(self, known: KnownKey, *, is_background: bool = False) -> None:
        """Count a request of a key out."""
        known.use.end(is_background=is_background)

    def reload(self) -> None:
        """Read the file now. Raises KeyFileError; the keys are then as they were."""
        if self._file is None:
            raise KeyFileError("no key file is in use; start the server with --api-key-file")
        try:
            self._load(self._file)
        except KeyFileError as error:
            self.file_errors += 1
            logger.error("the API keys stay as they were: %s", error)
            raise
        logger.info("%s was read: %d API keys are known", self._file, len(self.known))

    def _reload_if_changed(self) -> None:
        if self._file is None or self._clock() - self._checked_at < _CHECK_INTERVAL:
            return
        self._checked_at = self._clock()
        try:
            found = _signature(os.stat(self._file))
        except OSError:
            found = ()  # logged once, like any other problem of the file
        if found == self._signature:
            return
        self._signature = found
        try:
            self.reload()
        except KeyFileError:
            return

    def _load(self, file: Path) -> None:
        try:
            with open_file(file, most=_MAX_FILE_BYTES) as source:
                signature = _signature(os.fstat(source.fileno()))
                content = source.read(_MAX_FILE_BYTES)
        except OSError as error:
            raise KeyFileError(f"the key file {file!s:.200} cannot be read: {error.strerror}") from None
        except ModelLoadError as error:
            raise KeyFileError(f"the key file {error}") from None
        read = read_keys(content, str(file))
        taken = {key.digest: key.name for key in self._fixed}
        for key in read:
            if key.digest in taken:
                raise KeyFileError(f"{file}: {key.name} has the same hash as {taken[key.digest]}")
            taken[key.digest] = key.name
        self._replace([*self._fixed, *read])
        self._signature = signature

    def _replace(self, keys: Sequence[ApiKey]) -> None:
        """Replace the keys. A key of the same name keeps the counts of its use."""
        uses = {known.key.name: known.use for known in self.known}
        for key in keys:
            uses.setdefault(key.name, KeyUse(key.name, self._clock)).limits = key.limits
        self.known = [KnownKey(key, uses[key.name]) for key in keys]


def read_keys(content: bytes, file: str) -> list[ApiKey]:
    """Read the keys in a file's content. Raises KeyFileError, which never quotes a value that may be a key."""
    try:
        tables = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        # Other errors come from integers with too many digits and from very deep lists.
        reason = error if isinstance(error, tomllib.TOMLDecodeError | UnicodeDecodeError) else "a value is too large"
        raise KeyFileError(f"{file} is not valid TOML: {reason}") from None
    if not 1 <= len(tables) <= MAX_KEYS:
        raise KeyFileError(f"{file} has {len(tables)} keys; 1 to {MAX_KEYS} are accepted")
    return [_read_key(name, table, f"{file}: {name!r}") for name, table in tables.items()]


def _read_key(name: str, table: Any, where: str) -> ApiKey:
    if not _NAME.fullmatch(name):
        raise KeyFileError(
            f"{where} is not a valid name; 1 to 64 of a-z, A-Z, 0-9, - and _ are accepted; key-1, key-2, ... are "
            "reserved for --api-key"
        )
    if not isinstance(table, dict):
        raise KeyFileError(f"{where} is not a table; accepted is [{name}] with a line hash = ...")
    unknown = sorted(table.keys() - set(_FIELDS))
    if unknown:
        raise KeyFileError(f"{where} has a field {unknown[0]!r}; accepted are {', '.join(_FIELDS)}")
    hashed, admin = table.get("hash"), table.get("admin", False)
    if not isinstance(hashed, str) or not _HASH.fullmatch(hashed):
        raise KeyFileError(f"{where}: hash must be sha256: and 64 hexadecimal digits, as `lightwell key` prints them")
    if not isinstance(admin, bool):
        raise KeyFileError(f"{where}: admin is {_shown(admin)}; true and false are accepted")
    return ApiKey(
        name=name,
        digest=_digest(hashed),
        is_admin=admin,
        expires=_expiry(table.get("expires"), where),
        limits=KeyLimits(
            max_requests=_number(table, "max_requests", where, *_LIMIT),
            tokens_per_minute=_number(table, "tokens_per_minute", where, *_LIMIT),
            min_priority=_number(table, "min_priority", where, *_PRIORITY),
        ),
    )


def _shown(value: object) -> str:
    try:
        return repr(value)[:50]
    except ValueError:  # Python does not print integers of thousands of digits
        return "an integer that is too large"


def _digest(hashed: str) -> bytes:
    return bytes.fromhex(hashed.removeprefix("sha256:"))


_LIMIT = range(1, _MAX_LIMIT + 1), f"an integer from 1 to {_MAX_LIMIT} is accepted, or none for no limit"
_PRIORITY = PRIORITIES, f"{PRIORITIES[0]} to {PRIORITIES[-1]} are accepted, or none for what --allow-priority says"


def _number(table: dict[str, Any], field: str, where: str, numbers: range, accepted: str) -> int | None:
    value = table.get(field)
    if value is not None and (type(value) is not int or value not in numbers):  # not bool, which is a subclass
        raise KeyFileError(f"{where}: {field} is {_shown(value)}; {accepted}")
    return value


def _expiry(value: Any, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp()
    raise KeyFileError(f"{where}: expires is {_shown(value)}; a day such as 2027-01-31 or a time is accepted, unquoted")


def _signature(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
