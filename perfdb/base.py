"""What every table shares: the declarative base, fixed constraint names, ids and UTC times."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import BigInteger, DateTime, Dialect, Float, Integer, MetaData, Text
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator, TypeEngine

# SQLite gives a row id only to a column of type INTEGER.
Id = BigInteger().with_variant(Integer, "sqlite")

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


def one_of(column: str, values: tuple[str, ...]) -> str:
    """The SQL of a CHECK: the column holds one of the values."""
    return f"{column} IN ({', '.join(repr(value) for value in values)})"


class UtcTime(TypeDecorator[datetime]):
    """An aware datetime, stored in UTC; SQLite keeps a sortable text without a zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """The declarative base; constraint names are fixed so that a migration can name them."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map: ClassVar[dict[Any, TypeEngine[Any]]] = {
        datetime: UtcTime(),
        str: Text(),
        float: Float(53),
        int: Integer(),
    }
