"""A proxy object: all attributes of its target, except some of its own."""

from typing import Any

from perdure.errors import UsageError


class Proxy:
    """Proxies a target; `isinstance` accepts it as an instance of the target's class."""

    def __init__(self, target: Any, **own: Any) -> None:
        self._hold(_target=target, **own)

    def _hold(self, **own: Any) -> None:
        self.__dict__.update(own)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._target)

    def __getattr__(self, name: str) -> Any:
        if name == "_target":  # `copy` and `pickle` create an instance without it: avoid recursion.
            raise AttributeError(name)
        return getattr(self._target, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._target, name, value)

    def __dir__(self) -> list[str]:
        return dir(self._target)

    def __repr__(self) -> str:
        return f"<recorded {self._target!r}>"


def unsupported(name: str) -> UsageError:
    """Return the error for the SDK's raw responses."""
    reason = f"the session cannot record {name}"
    return UsageError(f"{reason}: call it on the original client, the one passed to wrap()")
