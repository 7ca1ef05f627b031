"""`session.current_turn`: the turn that the running code is inside of."""

import asyncio
import threading

import perdure


def test_it_is_the_innermost_turn_of_the_handle() -> None:
    with perdure.open("memory:") as store:
        session, other = store.session("s"), store.session("other")
        assert session.current_turn is None
        with session.turn("1") as outer:
            assert session.current_turn is outer
            assert other.current_turn is None
            with other.turn("2") as inner:
                assert (session.current_turn, other.current_turn) == (outer, inner)
            assert (session.current_turn, other.current_turn) == (outer, None)
        assert session.current_turn is None


def test_threads_do_not_see_each_others() -> None:
    with perdure.open("memory:") as store:
        session = store.session("s")
        seen: list[object] = []
        with session.turn("1") as turn:
            thread = threading.Thread(target=lambda: seen.append(session.current_turn))
            thread.start()
            thread.join()
            assert seen == [None]
            thread = threading.Thread(target=turn.__exit__, args=(None, None, None))
            thread.start()
            thread.join()
            assert session.current_turn is None


def test_tasks_begun_in_a_turn_are_inside_it() -> None:
    async def main() -> None:
        async with perdure.open_async("memory:") as store:
            session = await store.session("s")

            async def current() -> object:
                return session.current_turn

            async with session.turn("1") as turn:
                assert await asyncio.create_task(current()) is turn
            assert await asyncio.create_task(current()) is None

    asyncio.run(main())


def test_a_turn_that_is_over_can_be_entered_by_its_id() -> None:
    with perdure.open("memory:") as store:
        session = store.session("s")
        with session.turn("1", id="t1"):
            pass
        with session.turn("1", id="t1") as turn:
            assert turn.ended
            assert session.current_turn is turn
        assert session.current_turn is None
