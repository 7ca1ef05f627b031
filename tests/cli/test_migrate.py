"""`perdure migrate`, and what its script for row-level security does to two tenants."""

import re
import secrets
from collections.abc import Iterator
from functools import partial
from urllib.parse import quote

import psycopg
import pytest
from click.testing import CliRunner, Result
from psycopg import sql

import perdure
from perdure.backends.postgres import migrations
from perdure.backends.postgres.backend import PostgresBackend
from perdure.backends.postgres.backend_async import AsyncPostgresBackend
from perdure.backends.postgres.schema import LATEST_VERSION
from perdure.cli.__main__ import main
from perdure.errors import UnavailableError
from perdure.testing.contract.samples import append_all, append_of, entries
from tests.backends.postgres.test_migrations import FIRST
from tests.cli.support import invoke

MARK = secrets.token_hex(3)  # The server is shared by all test processes, and so are its roles.
TENANTS = (f"perdure_acme_{MARK}", f'perdure "globex" {MARK}')
PASSWORD = "open sesame"  # noqa: S105 - of roles that end with the test


def run(*arguments: str) -> Result:
    return CliRunner(env={"PERDURE_URL": "", "COLUMNS": "80"}).invoke(main, ["migrate", *arguments])


def schema_of(address: str) -> str:
    return address.rpartition("schema=")[2]


def test_it_makes_tables_and_says_so_once(postgres_empty: str) -> None:
    first, again = run(postgres_empty), run(postgres_empty)
    assert first.exit_code == again.exit_code == 0
    assert f"was migrated to version {LATEST_VERSION}." in first.stdout
    assert f"is up to date: version {LATEST_VERSION}." in again.stdout
    secret = postgres_empty.partition("://")[2].partition("@")[0].partition(":")[2]
    assert secret not in first.output + again.output
    backend = PostgresBackend(f"{postgres_empty}&migrate=no")
    assert append_all(backend, append_of("s", 1, 1)) == ["stored"]
    backend.close()


def by_hand(url: str, text: str) -> None:
    """Run statements one by one, as psql does."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in text.split(";\n"):
            connection.execute(statement.encode())


def test_a_dry_run_prints_what_does_the_same_by_hand(
    postgres_empty: str, postgres_url: str
) -> None:
    result = run(postgres_empty, "--dry-run")
    assert result.exit_code == 0
    with pytest.raises(UnavailableError, match="no tables yet"):
        PostgresBackend(f"{postgres_empty}&migrate=no")
    by_hand(postgres_url, result.stdout)
    assert "is up to date" in run(postgres_empty, "--dry-run").stdout
    backend = PostgresBackend(f"{postgres_empty}&migrate=no")
    assert append_all(backend, append_of("s", 1, 1)) == ["stored"]
    backend.close()


def test_the_same_of_tables_that_are_there(postgres_empty: str, postgres_url: str) -> None:
    by_hand(postgres_url, FIRST.format(schema=schema_of(postgres_empty)).strip())
    result = run(postgres_empty, "--dry-run")
    assert "is up to date" not in result.stdout
    by_hand(postgres_url, result.stdout)
    assert "is up to date" in run(postgres_empty, "--dry-run").stdout
    backend = PostgresBackend(f"{postgres_empty}&migrate=no")
    assert append_all(backend, append_of("s", 1, 1, "label")) == ["stored"]
    backend.close()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["agents.db"], 2, "Only a Postgres store"),
        (["postgresql://host/db", "--tenant", "x"], 2, "--tenant needs --print-rls"),
        (["postgresql://u:secret%zz@h/db"], 2, "cannot be parsed"),
        (["postgresql://u:secret@127.0.0.1:1/db"], 3, "check that the server is running"),
    ],
)
def test_what_can_not_work_is_one_line(arguments: list[str], code: int, text: str) -> None:
    result = run(*arguments)
    assert result.exit_code == code
    assert text in result.stderr
    assert "secret" not in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("end", ["\n", "\r"])
def test_a_name_with_a_line_end_stays_in_its_comment(end: str) -> None:
    name = f"acme{end}drop table kept; --"
    address = f"postgresql://host/db?schema={quote(name)}"
    script = run(address, "--print-rls", "--tenant", name).stdout
    comments = [line for line in re.split("[\n\r]", script) if line.startswith("--")]
    assert sum("drop table kept" in line for line in comments) == 2
    statements = re.sub(r"--[^\n\r]*", "", re.sub('"[^"]*"', "NAME", script))
    assert "drop table" not in statements


def test_commands_that_read_make_no_tables(postgres_empty: str) -> None:
    secret = postgres_empty.partition("://")[2].partition("@")[0].partition(":")[2]
    empty = invoke(postgres_empty, "ls")
    assert empty.exit_code == 3
    assert "no tables yet" in empty.stderr
    run(postgres_empty)
    with perdure.open(postgres_empty) as store:
        store.session("claim-4711").append({"role": "user", "content": "hello"})
    for arguments in (["ls"], ["ls", "--recent"], ["show", "claim-4711"], ["verify"], ["stats"]):
        result = invoke(postgres_empty, *arguments)
        assert result.exit_code == 0
        assert "claim-4711" in result.stdout
        assert secret not in result.output


@pytest.fixture
def tenants(postgres_url: str) -> Iterator[dict[str, str]]:
    """Two roles, and the addresses that they log in with."""
    _, _, place = postgres_url.rpartition("@")
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        for name in TENANTS:
            create = sql.SQL("create role {} login password {}")
            admin.execute(create.format(sql.Identifier(name), PASSWORD))
        yield {name: f"postgresql://{quote(name)}:{quote(PASSWORD)}@{place}" for name in TENANTS}
        for name in TENANTS:
            admin.execute(sql.SQL("drop owned by {}").format(sql.Identifier(name)))
            admin.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


@pytest.fixture
def secured(postgres_empty: str, postgres_url: str, tenants: dict[str, str]) -> dict[str, str]:
    """The addresses of two tenants' stores in one schema with row-level security."""
    assert run(postgres_empty).exit_code == 0
    words = [word for name in TENANTS for word in ("--tenant", name)]
    script = run(postgres_empty, "--print-rls", *words)
    assert script.exit_code == 0
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(script.stdout.encode())
        admin.execute(script.stdout.encode())
    return {
        name: f"{place}?schema={schema_of(postgres_empty)}&tenant={quote(name)}&migrate=no"
        for name, place in tenants.items()
    }


def test_with_row_level_security_a_tenant_sees_and_writes_only_its_own(
    postgres_empty: str,
    tenants: dict[str, str],
    secured: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema = schema_of(postgres_empty)
    acme, globex = (PostgresBackend(secured[name]) for name in TENANTS)
    for backend in (acme, globex):
        assert append_all(backend, append_of("s", 1, 2, "l")) == ["stored"]
        assert append_all(backend, append_of("s", 2, 3, "l")) == ["stored"], "resent in part"
        assert append_all(backend, append_of("s", 3, 3, mark="other")) == ["conflict"]
    acme.drop("s", before=3)
    assert list(acme.read("s")) == entries(3, 3)
    assert list(globex.read("s")) == entries(1, 3)
    assert [head.stream for head in globex.streams(labels=["l"])] == ["s"]
    assert [head.stream for head in globex.recent()] == ["s"]
    assert globex.watch("s", after=2, timeout=30)

    # An address that names another tenant helps nobody: opening says so, and if it did not, …
    foreign = f"{tenants[TENANTS[0]]}?schema={schema}&tenant={quote(TENANTS[1])}&migrate=no"
    with pytest.raises(UnavailableError, match="row-level security"):
        PostgresBackend(foreign)
    monkeypatch.setattr(migrations, "_require_own_tenant", lambda *_: None)
    thief = PostgresBackend(foreign)
    assert list(thief.read("s")) == []
    assert list(thief.streams()) == []
    with pytest.raises(UnavailableError, match=r"row-level security does not .*\?tenant=USER$"):
        thief.append([append_of("s", 1, 1, mark="thief")])
    thief.drop("s", before=9)
    (head,) = globex.streams()
    thief.remove("s", digest=head.digest)
    assert list(globex.read("s")) == entries(1, 3)
    with psycopg.connect(tenants[TENANTS[0]]) as connection:
        for table in ("head", "entry", "label", "watch"):
            name = sql.Identifier(schema, table)
            query = sql.SQL("select distinct tenant from {}").format(name)
            assert connection.execute(query).fetchall() in ([(TENANTS[0],)], [])
    for backend in (acme, globex, thief):
        backend.close()


@pytest.mark.parametrize("open_backend", [PostgresBackend, AsyncPostgresBackend])
@pytest.mark.parametrize("tenant", ["globex", ""])
def test_an_address_of_another_tenant_is_not_an_empty_store(
    secured: dict[str, str], tenant: str, open_backend: type
) -> None:
    acme = secured[TENANTS[0]]
    foreign = acme.replace(f"tenant={TENANTS[0]}", f"tenant={tenant}")
    with pytest.raises(UnavailableError) as caught:
        open_backend(foreign)
    named = f"the tenant {tenant!r}" if tenant else "no tenant"
    said = f"lets the user {TENANTS[0]!r} see only its own rows, and the address names {named}: "
    assert f"{said}open it with ?tenant={TENANTS[0]}" in str(caught.value)
    assert (f"a role named {tenant!r}" in str(caught.value)) == bool(tenant)
    doctor = invoke(None, "doctor", foreign)
    assert doctor.exit_code == 2
    assert "row-level security" in doctor.stdout
    name = quote(TENANTS[1])
    with pytest.raises(UnavailableError, match=re.escape(f"open it with ?tenant={name}")):
        open_backend(secured[TENANTS[1]].replace(f"tenant={name}", "tenant=x"))


def test_policies_of_somebody_else_and_owners_are_not_judged(
    postgres_empty: str, postgres_url: str, secured: dict[str, str]
) -> None:
    PostgresBackend(f"{postgres_empty}&tenant=any").close()
    acme = secured[TENANTS[0]].replace(f"tenant={TENANTS[0]}", "tenant=shared")
    with pytest.raises(UnavailableError):
        PostgresBackend(acme)
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        for table in ("head", "entry", "label", "watch"):
            more = sql.SQL("create policy shared on {} using (tenant = 'shared')")
            admin.execute(more.format(sql.Identifier(schema_of(postgres_empty), table)))
    backend = PostgresBackend(acme)
    assert append_all(backend, append_of("s", 1, 1)) == ["stored"]
    backend.close()


def test_a_role_that_is_missing_does_not_leave_rows_unguarded(
    postgres_empty: str, postgres_url: str, tenants: dict[str, str]
) -> None:
    """As psql runs it when it is not told to stop at the first error."""
    run(postgres_empty)
    words = ["--tenant", "perdure_nobody", "--tenant", TENANTS[0]]
    script = run(postgres_empty, "--print-rls", *words).stdout
    assert "psql -v ON_ERROR_STOP=1" in script
    errors = []
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        for statement in script.split(";\n"):
            try:
                admin.execute(statement.encode())
            except psycopg.Error as error:
                errors.append(str(error))
        secured = admin.execute(
            "select relname from pg_class"
            " where relrowsecurity and relnamespace = to_regnamespace(%s)",
            (schema_of(postgres_empty),),
        ).fetchall()
    assert 'role "perdure_nobody" does not exist' in errors[0]
    assert {name for (name,) in secured} == {"head", "entry", "label", "watch"}
    backend = PostgresBackend(
        f"{tenants[TENANTS[0]]}?schema={schema_of(postgres_empty)}&tenant={TENANTS[0]}&migrate=no"
    )
    assert append_all(backend, append_of("s", 1, 1)) == ["stored"]
    backend.close()


def test_a_tenant_with_sql_of_its_own_can_not_take_the_places_of_another(
    postgres_empty: str, tenants: dict[str, str], secured: dict[str, str]
) -> None:
    """Rows at the victim's next positions, under the attacker's own name, as the policy allows."""
    schema, attacker, victim = schema_of(postgres_empty), *TENANTS
    backend = PostgresBackend(secured[victim])
    assert append_all(backend, append_of("s", 1, 2, "l")) == ["stored"]
    key = backend._queries.key("s")
    with psycopg.connect(tenants[attacker], autocommit=True) as connection:
        for position in range(1, 9):
            connection.execute(
                sql.SQL("insert into {} values (%s, %s, %s, %s, %s, %s)").format(
                    sql.Identifier(schema, "entry")
                ),
                (key, position, attacker, position, b"forged", b"forged"),
            )
        insert = sql.SQL("insert into {} (stream, tenant, until) values (%s, %s, %s)")
        connection.execute(insert.format(sql.Identifier(schema, "watch")), (key, attacker, 2**62))
        labels = sql.SQL("insert into {} (tenant, name, label, present) values (%s, %s, %s, true)")
        connection.execute(labels.format(sql.Identifier(schema, "label")), (attacker, b"s", b"l"))
    assert append_all(backend, append_of("s", 3, 3, "l")) == ["stored"]
    assert append_all(backend, append_of("s", 3, 4, "l")) == ["stored"], "resent in part"
    assert append_all(backend, append_of("s", 5, 6), append_of("t", 1, 1)) == ["stored"] * 2
    assert append_all(backend, append_of("s", 3, 3, mark="other")) == ["conflict"]
    assert list(backend.read("s")) == entries(1, 6)
    assert list(backend.read("s", reverse=True)) == entries(1, 6)[::-1]
    assert list(backend.streams(labels=["l"])) == []
    backend._pool.run(partial(backend._operations.register_watch, stream="s", seconds=30))
    assert backend.watch("s", after=5, timeout=30)
    backend.drop("s", before=4)
    assert list(backend.read("s")) == entries(4, 6)
    (head, _) = backend.streams()
    assert backend.remove("s", digest=head.digest)
    assert list(backend.read("s")) == []
    assert append_all(backend, append_of("s", 1, 1)) == ["stored"]
    backend.close()
