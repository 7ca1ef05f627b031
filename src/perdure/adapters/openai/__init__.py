"""Wrap a client of the `openai` package so that its conversation is recorded in a session.

    client = wrap(openai.OpenAI(), store.session("claim-4711"))
    client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", …}])

Calls pass only new messages. Earlier messages come from the session. New messages are durable
before the model is called, and the reply is durable when the call returns. The package is not
patched, and other clients are not affected.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from perdure import AsyncSession, Session
from perdure.adapters.openai.aio.conversation import AsyncConversation
from perdure.adapters.openai.client import Proxy, unsupported
from perdure.adapters.openai.exchanges import RecordedReply, call_identity, parse_inputs
from perdure.adapters.openai.recorded_replies import replay_client
from perdure.adapters.openai.state import ApiCall, CallRecord, WrapOptions
from perdure.adapters.openai.sync.conversation import Conversation
from perdure.errors import UsageError
from perdure.formats.intake import copy_data

if TYPE_CHECKING:
    import openai

    from perdure.core.effects.catalogue import ToolChanges

Client = TypeVar("Client", bound="openai.OpenAI | openai.AsyncOpenAI")

AnyConversation = Conversation | AsyncConversation

CHUNK_INTERVAL = 0.5  # Seconds between writes of a streamed answer; the default of `turn.stream`.


def wrap(
    client: Client,
    session: Session | AsyncSession,
    *,
    max_tokens: int | None = None,
    max_messages: int | None = None,
    perspective: str = "",
    flush_every: float = CHUNK_INTERVAL,
    on_tools: "Callable[[ToolChanges], object] | None" = None,
) -> Client:
    """Return a client that behaves like the given one and records its conversation in a session.

    `chat.completions` and `responses`: `create`, streamed or not, `parse` and `stream` take new
    messages (`messages`, `input`) and send the session's window before them. `max_tokens`,
    `max_messages` and `perspective` are those of `session.messages` and `flush_every` that of
    `turn.stream`.

    Outside any turn, a call with new messages starts one, a reply without tool calls completes it,
    and an API error is recorded as its failure and raised unchanged. After a crash or a broken
    stream, a call with the same messages resumes the unfinished turn; replies that it already has
    are returned again without calling the model. Inside `with session.turn(...)`, calls belong to
    that turn.

    When the offered tools differ from the last call's, `on_tools` is called with the changes.
    Everything else of the client works as before, and is not recorded.
    """
    import openai

    if issubclass(type(client), _WrappedClient):
        raise UsageError("the client is wrapped already: pass the original client")
    if not isinstance(client, openai.OpenAI | openai.AsyncOpenAI):
        raise UsageError(f"a {type(client).__qualname__} is not a client: pass an openai.OpenAI()")
    options = WrapOptions(max_tokens, max_messages, perspective, flush_every, on_tools)
    asynchronous = isinstance(client, openai.AsyncOpenAI)
    conversation: AnyConversation
    if asynchronous and isinstance(session, AsyncSession):
        conversation = AsyncConversation(session, options)
    elif not asynchronous and isinstance(session, Session):
        conversation = Conversation(session, options)
    else:
        opener = "perdure.open_async" if asynchronous else "perdure.open"
        reason = f"an {type(client).__name__} client needs a session of {opener}(...)"
        raise UsageError(f"{reason}, not a {type(session).__qualname__}")
    return cast("Client", _WrappedClient(client, conversation))


class _WrappedClient(Proxy):
    """The wrapped client. Its copies belong to the same conversation."""

    def __init__(self, target: Any, conversation: AnyConversation) -> None:
        super().__init__(target)
        self._hold(_conversation=conversation)

    @property
    def chat(self) -> Any:
        return _WrappedChat(self._target, self._target.chat, self._conversation)

    @property
    def responses(self) -> Any:
        return _WrappedResponses(self._target, self._conversation)

    @property
    def beta(self) -> Any:
        beta = self._target.beta
        if not hasattr(beta, "chat"):
            return beta
        return Proxy(beta, chat=_WrappedChat(self._target, beta.chat, self._conversation))

    @property
    def with_raw_response(self) -> Any:
        raise unsupported("with_raw_response")

    @property
    def with_streaming_response(self) -> Any:
        raise unsupported("with_streaming_response")

    def copy(self, **options: Any) -> "_WrappedClient":
        return _WrappedClient(self._target.copy(**options), self._conversation)

    with_options = copy

    def __enter__(self) -> Self:
        self._target.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._target.__exit__(*error)

    async def __aenter__(self) -> Self:
        await self._target.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._target.__aexit__(*error)


class _WrappedChat(Proxy):
    """The `chat` resource: only its completions are recorded."""

    def __init__(self, client: Any, target: Any, conversation: AnyConversation) -> None:
        super().__init__(target)
        self._hold(completions=_WrappedCompletions(client, conversation))

    @property
    def with_raw_response(self) -> Any:
        raise unsupported("with_raw_response")

    @property
    def with_streaming_response(self) -> Any:
        raise unsupported("with_streaming_response")


class _Endpoint(Proxy):
    """An API resource whose calls are part of the conversation."""

    FORMAT = ""
    FIELD = ""
    STATE: tuple[str, ...] = ()

    def __init__(self, client: Any, conversation: AnyConversation) -> None:
        super().__init__(self._resource(client))
        self._hold(_client=client)
        self._hold(_conversation=conversation)

    def create(self, **arguments: Any) -> Any:
        return self._conversation.call(partial(self._request, "create", arguments))

    def parse(self, **arguments: Any) -> Any:
        return self._conversation.call(partial(self._request, "parse", arguments))

    def stream(self, **arguments: Any) -> Any:
        # The SDK's own helper, called with this object: it calls our `create`.
        return type(self._target).stream(self, **arguments)

    @property
    def with_raw_response(self) -> Any:
        raise unsupported("with_raw_response")

    @property
    def with_streaming_response(self) -> Any:
        raise unsupported("with_streaming_response")

    def _request(self, method: str, arguments: dict[str, Any]) -> ApiCall:
        for name in self.STATE:
            if arguments.get(name):
                reason = f"{name} leaves the conversation to the server, but the session records it"
                raise UsageError(f"{reason}: leave it out, or call the original client")
        # Copied: what is recorded is what is sent, whatever happens to the caller's objects.
        arguments = copy_data(arguments, objects=True)
        field, streaming = self.FIELD, bool(arguments.get("stream"))
        inputs = parse_inputs(arguments.get(field) or [], field)
        tools = arguments.get("tools")
        if tools:
            tools = list(tools)
            arguments = {**arguments, "tools": tools}

        def send(window: list[dict[str, Any]]) -> Any:
            return getattr(self._target, method)(**{**arguments, field: window})

        def replay(reply: RecordedReply) -> Any:
            client = replay_client(
                self._client,
                reply,
                streaming=streaming,
                usage=bool((arguments.get("stream_options") or {}).get("include_usage")),
                asynchronous=isinstance(self._conversation, AsyncConversation),
            )
            return getattr(self._resource(client), method)(**{**arguments, field: inputs})

        identity = {"given": inputs, "window": self._conversation.options[:3], "method": method}
        call_record = CallRecord(*call_identity(self.FORMAT, arguments, field, identity))
        return ApiCall(self.FORMAT, inputs, tools or [], streaming, send, replay, call_record)

    @staticmethod
    def _resource(client: Any) -> Any:
        raise NotImplementedError


class _WrappedCompletions(_Endpoint):
    FORMAT = "openai.chat"
    FIELD = "messages"

    @staticmethod
    def _resource(client: Any) -> Any:
        return client.chat.completions


class _WrappedResponses(_Endpoint):
    FORMAT = "openai.responses"
    FIELD = "input"
    STATE = ("previous_response_id", "conversation", "background")

    @staticmethod
    def _resource(client: Any) -> Any:
        return client.responses
