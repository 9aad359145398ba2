"""Errors of the performance database: each states the rule, what was found and the way out."""

from __future__ import annotations


class DatabaseError(Exception):
    """A rule of the database was broken; `str()` is one line: rule; got; remedy."""

    def __init__(self, rule: str, actual: object = None, remedy: str = "") -> None:
        self.rule = rule
        self.actual = actual
        self.remedy = remedy
        parts = [rule]
        if actual is not None:
            parts.append(f"got: {actual}")
        if remedy:
            parts.append(remedy)
        super().__init__("; ".join(parts))

    def __reduce__(self) -> tuple[type[DatabaseError], tuple[str, object, str]]:
        """Pickle by the three parts, so that an error survives the trip from a worker process."""
        return (type(self), (self.rule, self.actual, self.remedy))


class MissingDatabase(DatabaseError):
    """The database file does not exist and the caller did not ask for a new one."""


class NotADatabase(DatabaseError):
    """The file exists but is not a performance database (another format or another application)."""


class CorruptDatabase(DatabaseError):
    """The file was a performance database and is truncated or damaged."""


class SchemaTooNew(DatabaseError):
    """The database was written by a newer perfdb than this one."""


class SchemaTooOld(DatabaseError):
    """The database needs a migration that is not done by itself (a server, or a read-only opening)."""


class RecordError(DatabaseError):
    """A record or a question does not obey the rules of its fields."""
