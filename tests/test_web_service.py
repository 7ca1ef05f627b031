"""The page "use it in a web service" is true: its applications answer each error as it says."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.testing import Flaky
from tests.test_docs import ROOT, execute, python

PAGE = ROOT / "docs" / "how-to" / "use-it-in-a-web-service.md"
USER = "cid"  # The page itself has served others.
REFUND = {"id": "c1", "type": "function", "function": {"name": "refund", "arguments": "{}"}}


class Service(NamedTuple):
    """An application of the page, a client of it, and what the page defines."""

    client: TestClient
    page: dict[str, Any]

    def post(self, text: Any = "Hello.", *, user: str = USER, id: str = "r-1") -> Any:
        headers = {"Idempotency-Key": id}
        return self.client.post(f"/chat/{user}", json={"text": text}, headers=headers)

    def ask(self, function: Callable[[perdure.AsyncSession], Any]) -> Any:
        """Do something with the session in the loop of the application."""

        async def work() -> Any:
            app: Any = self.client.app
            return await function(await app.state.store.session(USER))

        portal = self.client.portal
        assert portal is not None
        return portal.call(work)


@pytest.fixture(params=["Starlette", "FastAPI"])
def service(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Service]:
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in python(PAGE) if block.not_run is None]
    if request.param == "Starlette":
        blocks = [block for block in blocks if "FastAPI" not in block.text]
    page = execute(PAGE, blocks)
    assert isinstance(page["app"], Starlette)
    assert type(page["app"]).__name__ == request.param
    with TestClient(page["app"], raise_server_exceptions=False) as client:
        yield Service(client, page)


def test_a_request_is_done_once(service: Service) -> None:
    first, second = service.post(), service.post()
    assert (first.status_code, second.status_code) == (200, 200)
    assert first.json() == second.json() == {"answer": "Answer to 'Hello.'."}
    assert service.post("Another.").status_code == 409, "the id was used for another text"
    assert service.post("Another.", id="r-9").status_code == 200


def test_a_request_that_is_wrong_is_the_clients(service: Service) -> None:
    assert service.client.post(f"/chat/{USER}", json={"text": "Hello."}).status_code in (400, 422)
    assert service.post(5).status_code in (400, 422)
    assert service.post(user="%00").status_code == 400


def test_a_user_who_is_served_elsewhere_is_asked_to_wait(service: Service) -> None:
    service.page["LEASE_TIMEOUT"] = 0.05
    lease = service.ask(_hold)
    reply = service.post()
    assert (reply.status_code, reply.json()) == (503, {"error": "LeaseHeldError"})
    assert reply.headers["retry-after"] == "5"
    service.client.portal.call(lease.release)  # type: ignore[union-attr]
    assert service.post().status_code == 200


async def _hold(session: perdure.AsyncSession) -> Any:
    return await session.lease().__aenter__()


def test_a_store_that_is_down_is_asked_later(service: Service) -> None:
    app, store = service.page["app"], service.page["app"].state.store
    app.state.store = perdure.open_async(ThreadedBackend(Flaky(MemoryBackend(), fail=1.0, seed=1)))
    reply = service.post()
    assert (reply.status_code, reply.json()) == (503, {"error": "UnavailableError"})
    app.state.store = store
    assert service.post().status_code == 200


def test_a_call_that_waits_for_a_person_is_accepted_and_done_later(service: Service) -> None:
    refunds = []

    def refund() -> str:
        refunds.append(1)
        return "refunded"

    async def model(messages: list[Any], _: Any) -> dict[str, Any]:
        if messages[-1]["role"] == "tool":
            return {"role": "assistant", "content": messages[-1]["content"]}
        return {"role": "assistant", "content": None, "tool_calls": [REFUND]}

    async def answer(store: Any, user: str, request_id: str, text: str) -> str:
        async with await store.session(user) as session, session.lease(timeout=10):
            tool = session.tool(refund, approval=True, approval_wait=0)
            return str(
                (await perdure.AsyncAgent(session, model, [tool]).run(request_id, text))["content"]
            )

    async def approve(session: perdure.AsyncSession) -> None:
        (approval,) = await session.approvals.list()
        await session.approvals.approve(approval.id, by="ada", digest=approval.digest)

    service.page["answer"] = answer
    for _ in range(2):
        reply = service.post()
        assert (reply.status_code, reply.json()) == (202, {"error": "ApprovalPendingError"})
        assert "retry-after" in reply.headers
    service.ask(approve)
    assert service.post().json() == service.post().json() == {"answer": "refunded"}
    assert refunds == [1]


def test_without_a_lease_the_same_request_twice_at_once_is_a_conflict(service: Service) -> None:
    begun = threading.Event()
    second: list[Any] = []

    async def model(messages: list[Any], _: Any) -> dict[str, Any]:
        if not begun.is_set():
            begun.set()
            while not second:
                await service.page["asyncio"].sleep(0.01)
        return {"role": "assistant", "content": "Done."}

    async def answer(store: Any, user: str, request_id: str, text: str) -> str:
        async with await store.session(user) as session:
            return str((await perdure.AsyncAgent(session, model).run(request_id, text))["content"])

    service.page["answer"] = answer
    with ThreadPoolExecutor() as threads:
        first = threads.submit(service.post)
        assert begun.wait(10)
        second.append(service.post())
        assert (first.result().status_code, second[0].status_code) == (409, 200)
    assert service.post().json() == {"answer": "Done."}


def test_an_error_of_the_model_is_retried_under_the_same_id(service: Service) -> None:
    model = service.page["model"]

    async def down(*_: Any) -> Any:
        raise ConnectionError("the model is down")

    service.page["model"] = down
    assert service.post().status_code == 500
    service.page["model"] = model
    assert service.post().status_code == 200
    assert len(service.ask(_messages)) == 2


async def _messages(session: perdure.AsyncSession) -> Any:
    return await session.messages()
