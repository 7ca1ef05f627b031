"""Proxy objects: all attributes of their target, except some of their own."""

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


class StreamProxy(Proxy):
    """Proxies a stream that is recorded as it is read: every way to close it closes the record."""

    @property
    def response(self) -> Any:
        """The HTTP response; closing it closes the stream: the SDK's helpers close only it."""
        return Proxy(self._target.response, close=self.close, aclose=self.close)

    @property
    def aclose(self) -> Any:
        """The name by which the SDK and `contextlib.aclosing` close an async stream."""
        return self.close

    def close(self) -> Any:
        raise NotImplementedError


def unsupported(name: str) -> UsageError:
    """Return the error for the SDK's raw responses."""
    reason = f"the session cannot record {name}"
    return UsageError(f"{reason}: call it on the original client, the one passed to wrap()")
