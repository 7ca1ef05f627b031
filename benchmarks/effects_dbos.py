"""DBOS, run the way that its users run it: a workflow for each session, and its steps."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import apsw

from benchmarks.effects_clock import Clock, Result, join, look_up, started


class Dbos:
    """A workflow for each session, with as many steps."""

    def __init__(self, *, wal: bool) -> None:
        self._wal = wal

    def threads(self, folder: Path, sessions: int, steps: int) -> Result:
        clock = Clock()
        ready, done = threading.Barrier(sessions, clock.start), threading.Barrier(sessions + 1)
        dbos = self._library()
        step = dbos.step(name="look_up")(look_up)

        def run() -> None:
            ready.wait()
            for number in range(steps):
                step(number)
            done.wait()

        workflow = dbos.workflow(name="run")(run)
        settings = self._launch(dbos, folder)
        try:
            threads = started(sessions, lambda _: workflow())
            done.wait()
            result = clock.result(sessions * steps, settings)
            join(threads)
            return result
        finally:
            dbos.destroy(destroy_registry=True)

    def tasks(self, folder: Path, sessions: int, steps: int) -> Result:
        clock = Clock()
        dbos = self._library()

        async def look_up_soon(number: int) -> dict[str, int]:
            return {"number": number}

        step = dbos.step(name="look_up")(look_up_soon)
        barriers: list[asyncio.Barrier] = []

        async def run() -> None:
            if await barriers[0].wait() == 0:
                clock.start()
            for number in range(steps):
                await step(number)
            await barriers[1].wait()

        workflow = dbos.workflow(name="run")(run)

        async def main(settings: str) -> Result:
            barriers[:] = asyncio.Barrier(sessions), asyncio.Barrier(sessions + 1)
            tasks = [asyncio.create_task(workflow()) for _ in range(sessions)]
            await barriers[1].wait()
            result = clock.result(sessions * steps, settings)
            await asyncio.gather(*tasks)
            return result

        settings = self._launch(dbos, folder)
        try:
            return asyncio.run(main(settings))
        finally:
            dbos.destroy(destroy_registry=True)

    @staticmethod
    def _library() -> Any:
        from dbos import DBOS

        return DBOS

    def _launch(self, dbos: Any, folder: Path) -> str:
        path = folder / "dbos.sqlite"
        if self._wal:  # It stays with the file.
            database = apsw.Connection(str(path))
            database.pragma("journal_mode", "wal")
            database.close()
        url = f"sqlite:///{path}"
        dbos(
            config={
                "name": "bench",
                "system_database_url": url,
                "run_admin_server": False,
                # On a busy machine 64 sessions wait longer for its 20 connections than 30 s.
                "db_engine_kwargs": {"pool_timeout": 600},
                "log_level": "ERROR",
            }
        )
        dbos.launch()
        from dbos._dbos import _get_dbos_instance

        # It has no other way to say how its connections are set.
        with _get_dbos_instance()._sys_db.engine.connect() as connection:  # noqa: SLF001
            mode = connection.exec_driver_sql("pragma journal_mode").scalar()
            level = connection.exec_driver_sql("pragma synchronous").scalar()
        return f"{mode}, {_LEVELS[level or 0]}"


_LEVELS = {0: "off", 1: "normal", 2: "full", 3: "extra"}
