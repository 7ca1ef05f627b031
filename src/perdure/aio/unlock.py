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
from perdure.journal.key_store import SealMark, WrappedKeys

if TYPE_CHECKING:
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
    from perdure.keys import decrypt, unwrap_key

    wrapping = {}
    for key_id, data in wrapped.wrapping:
        unwrap = partial(unwrap_key, master, data, store=store, name=name)
        wrapping[key_id] = await _call(unwrap)
    current = wrapped.wrapping[0][0]
    try:
        context = NAMES_CONTEXT.format(store).encode()
        names = decrypt(wrapping[current], wrapped.names, context)
    except ValueError as error:
        reason = "the key of its labels does not fit its wrapping key"
        raise WrongKeyError(name, reason, "restore its key store from a backup") from error
    keys = StoreKeys(store, current, wrapping, names, name)
    return settings._replace(cipher=SealedCipher(keys, settings.tenant, RESERVED_LABELS))


async def _call(function: Callable[[], Any]) -> Any:
    outcome = await call_function(function, timeout=None, name="perdure-keys")
    result, error = outcome or (None, None)
    if error is not None:
        raise error
    return result
