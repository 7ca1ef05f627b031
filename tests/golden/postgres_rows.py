"""A store in Postgres as lines of JSON: the statements that make its tables, then its rows.

The statements are in the dump, so that it can be loaded as that version made it, and migrated by a
later one. Bytes are in base64.
"""

import base64
import json
from collections.abc import Callable
from typing import Any, LiteralString, cast

import psycopg
from psycopg import sql

from perdure.backends.postgres import schema as tables
from perdure.backends.postgres.backend import PostgresBackend
from perdure.backends.protocol import Backend
from tests.backends.postgres import server
from tests.backends.postgres.server_keeper import running

SCHEMA = "{schema}"


def dump(fill: Callable[[Backend], None]) -> bytes:
    """Start a server, fill a store in it, and return its rows."""
    with running() as found:
        name = server.new_schema()
        backend = PostgresBackend(server.address(found.url, schema=name))
        fill(backend)
        backend.close()
        with psycopg.connect(found.url) as connection:
            lines = [json.dumps({"statements": list(tables.TABLES)})]
            lines += [
                line
                for table in _tables(connection, name)
                for line in _rows(connection, name, table)
            ]
    return ("\n".join(lines) + "\n").encode()


def _tables(connection: psycopg.Connection, schema: str) -> list[str]:
    text = "select tablename from pg_tables where schemaname = %s order by tablename"
    return [row[0] for row in connection.execute(text, [schema])]


def _rows(connection: psycopg.Connection, schema: str, table: str) -> list[str]:
    cursor = connection.execute(
        sql.SQL("select * from {} order by 1, 2").format(sql.Identifier(schema, table))
    )
    names = [column.name for column in cursor.description or ()]
    rows = [dict(zip(names, row, strict=True)) for row in cursor]
    order = sorted(row["changed"] for row in rows if "changed" in row)
    for row in rows:  # The time of the server: its order is all that counts.
        if "changed" in row:
            row["changed"] = order.index(row["changed"]) + 1
    packed = [{name: _pack(value) for name, value in row.items()} for row in rows]
    return sorted(json.dumps({"table": table, "row": row}) for row in packed)


def _pack(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return value if isinstance(value, int | str | bool | None) else {"text": "2026-11-18T00:00:00Z"}


def _unpack(value: Any) -> Any:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"]) if "base64" in value else value["text"]
    return value


def load(url: str, schema: str, data: bytes) -> None:
    """Make the tables in a schema that does not exist, and put the rows in."""
    first, *lines = data.decode().splitlines()
    with psycopg.connect(url) as connection:
        connection.execute(sql.SQL("create schema {}").format(sql.Identifier(schema)))
        for statement in json.loads(first)["statements"]:
            text = statement.replace(SCHEMA, f'"{schema}"')
            connection.execute(cast("LiteralString", text))
        for line in map(json.loads, lines):
            names, values = [*line["row"]], [_unpack(value) for value in line["row"].values()]
            connection.execute(
                sql.SQL("insert into {} ({}) values ({})").format(
                    sql.Identifier(schema, line["table"]),
                    sql.SQL(", ").join(map(sql.Identifier, names)),
                    sql.SQL(", ").join([sql.Placeholder()] * len(values)),
                ),
                values,
            )
