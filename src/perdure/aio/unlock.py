"""Unlock a sealed store when it is first used, or seal a new one; find out that a store is sealed.

The master key may be behind a network or a slow function, so it is called beside the event loop.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from perdure.aio.concurrency import call_function
from perdure.aio.driver import AsyncDriver
from perdure.core.settings import SealOptions, Settings
from perdure.core.state.session_state import RESERVED_LABELS
from perdure.errors import MissingKeyError, UsageError, WrongKeyError
from perdure.journal import key_store
from perdure.journal.cipher import LockedCipher
from perdure.journal.ids import random_bytes, random_text
from perdure.journal.key_store import SealMark, StoredContent, WrappedKeys

if TYPE_CHECKING:
    from perdure.journal.rotation import RotationProgress
    from perdure.journal.sealed import StoreKeys
    from perdure.keys import MasterKey

NAMES_CONTEXT = "perdure 1 names key {}"


async def unlock(driver: AsyncDriver, settings: Settings, options: SealOptions) -> Settings:
    """Return the settings with the cipher of the store.

    Without keys, a sealed store can be opened, and refuses to read or write any record.
    """
    name, master = driver.name, options.master
    mark = await driver.run(key_store.find_seal())
    if master is None:
        return settings if mark is None else settings._replace(cipher=LockedCipher(name))
    if mark is None:
        mark = await _seal(driver, settings, master, options)
    if mark.elsewhere and not options.elsewhere:
        hint = "give that store in key_store="
        raise MissingKeyError(name, "its keys are in another store", hint)
    if options.elsewhere and not mark.elsewhere:
        raise UsageError(f"the keys of {name} are in the store itself: leave key_store= out")
    wrapped = await driver.run(key_store.require_keys(mark, name))
    return await _unwrap(settings, wrapped, mark.store, master, name)


async def _seal(
    driver: AsyncDriver, settings: Settings, master: "MasterKey", options: SealOptions
) -> SealMark:
    """Make the keys of a new store, then mark it as sealed; return the mark that it has then."""
    from perdure.journal.sealed import NAMES_KEY_BYTES
    from perdure.keys import KEY_BYTES, encrypt

    await driver.run(key_store.require_empty(driver.name))
    store, wrapping, wrapping_id = random_text(), random_bytes(KEY_BYTES), random_text()
    wrapped = await _call(partial(master.wrap, wrapping, store=store))
    names = encrypt(wrapping, random_bytes(NAMES_KEY_BYTES), NAMES_CONTEXT.format(store).encode())
    keys = WrappedKeys(wrapping=((wrapping_id, bytes(wrapped)),), names=names)
    time = settings.now()
    await driver.run(key_store.put(key_store.keys_stream(store), keys, time=time))
    mark = SealMark(store=store, elsewhere=options.elsewhere)
    if await driver.run(key_store.store_seal(mark, time=time)):
        return mark
    # Another process was faster. The keys that were just made are never used.
    return await driver.run(key_store.find_seal()) or mark


async def _unwrap(
    settings: Settings, wrapped: WrappedKeys, store: str, master: "MasterKey", name: str
) -> Settings:
    from perdure.journal.sealed import SealedCipher, StoreKeys
    from perdure.keys import decrypt

    wrapping = await _unwrap_all(wrapped, store, master, name)
    current = wrapped.wrapping[0][0]
    try:
        context = NAMES_CONTEXT.format(store).encode()
        names = decrypt(wrapping[current], wrapped.names, context)
    except ValueError as error:
        reason = "the key of its labels does not fit its wrapping key"
        raise WrongKeyError(name, reason, "restore its key store from a backup") from error
    keys = StoreKeys(store, current, wrapping, names, name)
    return settings._replace(cipher=SealedCipher(keys, settings.tenant, RESERVED_LABELS))


async def _unwrap_all(
    wrapped: WrappedKeys, store: str, master: "MasterKey", name: str
) -> dict[str, bytes]:
    from perdure.keys import unwrap_key

    wrapping = {}
    for key_id, data in wrapped.wrapping:
        unwrap = partial(unwrap_key, master, data, store=store, name=name)
        wrapping[key_id] = await _call(unwrap)
    return wrapping


async def reload_keys(driver: AsyncDriver, *, keys: "StoreKeys", master: "MasterKey") -> None:
    """Read the wrapping keys of a store again, because they were rotated."""
    mark = SealMark(store=keys.store)
    wrapped = await driver.run(key_store.require_keys(mark, driver.name))
    wrapping = await _unwrap_all(wrapped, keys.store, master, driver.name)
    keys.update(wrapped.wrapping[0][0], wrapping)


async def rotate(
    driver: AsyncDriver,
    settings: Settings,
    keys: "StoreKeys",
    masters: "tuple[MasterKey, MasterKey]",
    on_progress: "Callable[[RotationProgress], object]",
) -> "RotationProgress":
    """Wrap the data keys of a store by a new wrapping key, and that one by the second master key.

    The first master key is the one that the store was opened with.
    """
    from perdure.journal import rotation
    from perdure.keys import KEY_BYTES, encrypt

    store, (old, new) = keys.store, masters
    stored = await driver.run(key_store.require_stored_keys(store, driver.name))
    wrapped = key_store.as_wrapped_keys(stored)
    wrapping = await _unwrap_all(wrapped, store, old, driver.name)
    is_continued = len(wrapping) > 1  # A rotation was interrupted: its new key is there.
    if not is_continued:
        wrapping = {random_text(): random_bytes(KEY_BYTES), **wrapping}
    if not is_continued or new is not old:
        names = encrypt(
            next(iter(wrapping.values())), keys.names, NAMES_CONTEXT.format(store).encode()
        )
        stored = await _store(driver, settings, stored, (store, new), wrapping, names)
        wrapped = key_store.as_wrapped_keys(stored)
    current = wrapped.wrapping[0][0]
    keys.update(current, wrapping)
    steps = rotation.wrap_all(keys, time=settings.now(), on_progress=on_progress)
    progress = await driver.run(steps)
    last = {current: wrapping[current]}
    await _store(driver, settings, stored, (store, new), last, wrapped.names)
    keys.update(current, last)
    return progress


async def _store(
    driver: AsyncDriver,
    settings: Settings,
    after: StoredContent,
    owner: "tuple[str, MasterKey]",
    wrapping: dict[str, bytes],
    names: bytes,
) -> StoredContent:
    """Store the wrapping keys of a store, wrapped by a master key, in the place of others."""
    store, master = owner
    wrapped = [
        (key_id, bytes(await _call(partial(master.wrap, key, store=store))))
        for key_id, key in wrapping.items()
    ]
    content, name = WrappedKeys(wrapping=tuple(wrapped), names=names), key_store.keys_stream(store)
    await driver.run(key_store.put(name, content, time=settings.now(), after=after))
    return await driver.run(key_store.require_stored_keys(store, driver.name))


async def _call(function: Callable[[], Any]) -> Any:
    outcome = await call_function(function, timeout=None, name="perdure-keys")
    result, error = outcome or (None, None)
    if error is not None:
        raise error
    return result
