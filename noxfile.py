"""The checks on every supported Python that is installed, from the same pins as everywhere."""

import nox

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]

nox.options.sessions = ["check"]
nox.options.error_on_missing_interpreters = False


def install(session: nox.Session, requirements: str) -> None:
    session.install("--require-hashes", "-r", f"requirements/{requirements}.txt")
    session.install("--no-deps", "--no-build-isolation", "-e", ".")


@nox.session(python=PYTHONS)
def check(session: nox.Session) -> None:
    """Everything that scripts/check.py runs."""
    install(session, "test")
    session.run("python", "scripts/check.py")


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Only pytest, with the arguments after `--`."""
    install(session, "test")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session(python=PYTHONS[0])
def coverage(session: nox.Session) -> None:
    """Branch coverage of the tests, child processes included."""
    install(session, "test")
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", "-n", "2", *session.posargs)
    session.run("coverage", "combine")
    session.run("coverage", "report")


@nox.session(python=PYTHONS[0])
def bench(session: nox.Session) -> None:
    """The benchmarks, with the arguments after `--`."""
    install(session, "bench")
    session.run("python", "benchmarks/run.py", *session.posargs)


@nox.session(python=PYTHONS[0])
def docs(session: nox.Session) -> None:
    """The documentation as a web site, in build/docs."""
    session.install("--require-hashes", "-r", "requirements/docs.txt")
    session.run("mkdocs", "build", env={"NO_MKDOCS_2_WARNING": "1"})
