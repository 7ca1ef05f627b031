"""The errors of the API: status and body, worded as the hosted API words them. Pure."""

from typing import Any

from perdure.testing.provider_rules.shapes import Finding

RETRYABLE = frozenset({408, 409, 429, 500, 502, 503, 504})  # statuses that clients retry


_NO_KEY = (
    "You didn't provide an API key. You need to provide your API key in an Authorization header "
    "using Bearer auth (i.e. Authorization: Bearer YOUR_KEY)."
)

# By status: message, type and code, as the hosted API words them.
_ERRORS: dict[int, tuple[str, str, str | None]] = {
    401: (_NO_KEY, "invalid_request_error", None),
    403: ("You are not allowed to do this.", "invalid_request_error", "unsupported_operation"),
    404: ("The model does not exist.", "invalid_request_error", "model_not_found"),
    429: ("Rate limit reached for requests.", "requests", "rate_limit_exceeded"),
    503: ("The engine is currently overloaded, please try again later.", "server_error", None),
}

_FAILED = ("The server had an error while processing your request.", "server_error", None)

_REFUSED = ("The request was refused.", "invalid_request_error", None)

_SERVER_ERROR = 500


class ApiError(Exception):
    """A request is answered with an error; `body` is its JSON."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(status, message)
        self.status = status
        error = {"message": message, "type": type, "param": param, "code": code}
        self.body: dict[str, Any] = {"error": error}

    @property
    def headers(self) -> dict[str, str]:
        """Ask for an immediate retry, so that a test does not wait for the client's backoff."""
        return {"retry-after-ms": "1"} if self.status in RETRYABLE else {}


def error_for_status(status: int) -> ApiError:
    """Return the error that the hosted API sends with this status."""
    default = _FAILED if status >= _SERVER_ERROR else _REFUSED
    message, type, code = _ERRORS.get(status, default)
    return ApiError(status, message, type=type, code=code)


def error_for_finding(finding: Finding) -> ApiError:
    return ApiError(400, finding.text, param=finding.param, code=finding.code)


def missing_parameter(name: str) -> ApiError:
    text = f"Missing required parameter: '{name}'."
    return ApiError(400, text, param=name, code="missing_required_parameter")


def invalid_type(name: str, expected: str) -> ApiError:
    text = f"Invalid type for '{name}': expected {expected}."
    return ApiError(400, text, param=name, code="invalid_type")


def unsupported_parameter(name: str) -> ApiError:
    text = f"Unsupported parameter: '{name}' is not supported by this test server."
    return ApiError(400, text, param=name, code="unsupported_parameter")


def not_found(method: str, path: str) -> ApiError:
    return ApiError(404, f"Invalid URL ({method} {path})")


def prompt_too_long(api: str, limit: int, tokens: int) -> ApiError:
    if api == "chat":
        text = (
            f"This model's maximum context length is {limit} tokens. However, your messages "
            f"resulted in {tokens} tokens. Please reduce the length of the messages."
        )
        return ApiError(400, text, param="messages", code="context_length_exceeded")
    text = "Your input exceeds the context window of this model. Please adjust your input and try "
    return ApiError(400, f"{text}again.", param="input", code="context_length_exceeded")
