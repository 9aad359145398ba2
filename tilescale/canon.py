"""Canonical JSON of frozen values, and the digests that identify them.

Equal values give equal text in every process and under every hash seed: keys are sorted, sets become sorted lists, a
field declared ``float`` is written as a float even where an int was given, and negative zero as zero. A dataclass
becomes the plain dict of its fields; a ``"type"`` tag with the class name is added only where the declared type leaves
the class open (a union of several dataclasses, a base class, an element of an untyped container), so that reading back
is unambiguous.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import math
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from tilescale.errors import TilescaleError, nearest

T = TypeVar("T")
Json = Any
Encoder = Callable[[Any], Json]

TAG = "type"
_ROOTS = (object, typing.Generic, typing.Protocol)


def encode(value: object) -> Json:
    """JSON-able form of a value made of dataclasses, enums, tuples, lists, sets, mappings and scalars.

    Raises TilescaleError for other types, for NaN and infinities, and where a field does not hold what it declares.
    """
    kind: Any = type(value)
    if _is_value(value) and not _is_polymorphic(kind):
        return _encode_fields(value)
    return _encode_any(value)


def dumps(value: object) -> str:
    """Canonical JSON text: sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(encode(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: object) -> str:
    """16 hexadecimal digits of the SHA-256 of ``dumps(value)``."""
    return digest_bytes(dumps(value).encode())


def digest_bytes(data: bytes) -> str:
    """16 hexadecimal digits of the SHA-256 of ``data``."""
    return hashlib.sha256(data).hexdigest()[:16]


@overload
def decode(cls: type[T], data: Json) -> T: ...
@overload
def decode(cls: Any, data: Json) -> Any: ...
def decode(cls: Any, data: Json) -> Any:
    """The value of type ``cls`` (a class or any type expression) that ``encode`` wrote as ``data``.

    Raises TilescaleError naming the place, what was expected and, for a wrong key, the nearest valid one.
    """
    return _decode(cls, data, "")


@overload
def loads(cls: type[T], text: str) -> T: ...
@overload
def loads(cls: Any, text: str) -> Any: ...
def loads(cls: Any, text: str) -> Any:
    """``decode`` of JSON text; TilescaleError where the text is no JSON."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise TilescaleError("the text is JSON", str(error), "write it with canon.dumps") from None
    return decode(cls, data)


# --- encoding ---------------------------------------------------------------------------------------------------------


def _is_value(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


@functools.cache
def _is_polymorphic(cls: Any) -> bool:
    """Whether ``cls`` is one of a family (it has a base of its own), so that its bare fields would not identify it."""
    return any(base not in _ROOTS and base.__module__ != "abc" for base in cls.__mro__[1:])


@functools.cache
def _fields(cls: Any) -> tuple[tuple[str, Any, Encoder], ...]:
    hints = typing.get_type_hints(cls)
    return tuple((f.name, hints[f.name], _encoder(hints[f.name])) for f in dataclasses.fields(cls) if f.init)


def _encode_fields(value: Any) -> Json:
    kind: Any = type(value)
    fields = _fields(kind)
    try:
        return {name: encoder(getattr(value, name)) for name, _, encoder in fields}
    except TypeError as error:
        raise TilescaleError(f"fields of {kind.__name__} hold their declared types", str(error)) from None


def _encode_tagged(value: Any) -> Json:
    data = _encode_fields(value)
    if TAG in data:
        raise TilescaleError(f"a dataclass used in a union has no field {TAG!r}", type(value).__name__, "rename it")
    return {TAG: type(value).__name__, **data}


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise TypeError(f"{value!r} is not a bool")


def _encode_any(value: Any) -> Json:
    if value is None or isinstance(value, (bool, str)):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _finite(value)
    if _is_value(value):
        return _encode_tagged(value)
    if isinstance(value, (tuple, list)):
        return [_encode_any(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return _sorted([_encode_any(item) for item in value])
    if isinstance(value, Mapping):
        return {_key(key): _encode_any(item) for key, item in value.items()}
    raise TilescaleError(
        "canonical JSON holds dataclasses, enums, tuples, mappings and scalars",
        f"{type(value).__name__}: {value!r}",
        "convert it first",
    )


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise TilescaleError("canonical JSON holds finite numbers", number, "store None instead")
    return number + 0.0  # no negative zero: it equals zero and would be written differently


def _key(key: object) -> str:
    if isinstance(key, enum.Enum):
        key = key.value
    if isinstance(key, (str, int)) and not isinstance(key, bool):
        return str(key)
    raise TilescaleError("keys of a mapping are strings or integers", repr(key))


def _sorted(items: list[Json]) -> list[Json]:
    return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"{value!r} is not a str")


def _integer(value: Any) -> int:
    return int(operator.index(value))


@functools.cache
def _encoder(hint: Any) -> Encoder:
    """The function that encodes a field declared as ``hint``."""
    scalars: dict[Any, Encoder] = {str: _text, int: _integer, float: _finite, bool: _flag}
    if hint in scalars:
        return scalars[hint]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (tuple, list):
        return _sequence_encoder(args)
    if origin in (set, frozenset):
        element = _encoder(args[0])
        return lambda value: _sorted([element(item) for item in value])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        item = _encoder(args[1])
        return lambda value: {_key(k): item(v) for k, v in value.items()}
    if origin in (typing.Union, types.UnionType):
        return _union_encoder(args)
    if isinstance(hint, type) and hint is not object and not issubclass(hint, enum.Enum):
        return lambda value: _encode_fields(value) if type(value) is hint and _is_value(value) else _encode_any(value)
    return _encode_any


def _sequence_encoder(args: tuple[Any, ...]) -> Encoder:
    if len(args) == 1 or (len(args) == 2 and args[1] is Ellipsis):
        element = _encoder(args[0])
        return lambda value: [element(item) for item in value]
    elements = tuple(_encoder(arg) for arg in args)
    return lambda value: [one(item) for one, item in zip(elements, value, strict=True)]


def _union_encoder(args: tuple[Any, ...]) -> Encoder:
    members = [arg for arg in args if arg is not type(None)]
    if len(members) == 1:
        inner = _encoder(members[0])
        return lambda value: None if value is None else inner(value)
    values = [arg for arg in members if dataclasses.is_dataclass(arg)]
    containers = [arg for arg in members if typing.get_origin(arg) is not None]

    def encode_member(value: Any) -> Json:
        if _is_value(value):
            plain = len(values) == 1 and type(value) is values[0]
            return _encode_fields(value) if plain else _encode_tagged(value)
        if isinstance(value, (tuple, list)) and len(containers) == 1:
            return _encoder(containers[0])(value)
        return _encode_any(value)

    return encode_member


# --- decoding ---------------------------------------------------------------------------------------------------------


def _wrong(where: str, expected: str, data: Json) -> TilescaleError:
    shown = repr(data)
    return TilescaleError(f"{where or 'the value'} is {expected}", shown if len(shown) < 120 else shown[:117] + "...")


def _decode(hint: Any, data: Json, where: str) -> Any:
    if hint is Any or hint is object:
        return data
    if hint is None or hint is type(None):
        if data is None:
            return None
        raise _wrong(where, "null", data)
    if hint in (str, int, float, bool):
        return _decode_scalar(hint, data, where)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(args, data, where)
    if origin is typing.Literal:
        if data in args:
            return data
        raise _wrong(where, "one of " + ", ".join(map(repr, args)), data)
    if origin in (tuple, list, set, frozenset) or hint in (tuple, list):
        return _decode_sequence(origin or hint, args, data, where)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(data, dict):
            raise _wrong(where, "a table", data)
        return {_decode_key(args[0], k): _decode(args[1], v, f"{where}.{k}".lstrip(".")) for k, v in data.items()}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        try:
            return hint(data)
        except ValueError:
            raise _wrong(where, "one of " + ", ".join(repr(m.value) for m in hint), data) from None
    if isinstance(hint, type):
        return _decode_class(hint, data, where)
    raise TilescaleError("canonical JSON is read as a known type", repr(hint), "declare the field more precisely")


def _decode_key(hint: Any, key: str) -> Any:
    return int(key) if hint is int else key


def _decode_scalar(hint: type, data: Json, where: str) -> Any:
    if hint is float and type(data) in (int, float):
        return float(data)
    if type(data) is hint:
        return data
    names = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}
    raise _wrong(where, names[hint], data)


def _decode_sequence(origin: type, args: tuple[Any, ...], data: Json, where: str) -> Any:
    if not isinstance(data, (list, tuple)):
        raise _wrong(where, "a list", data)
    if origin is tuple and args and not (len(args) == 2 and args[1] is Ellipsis):
        if len(args) != len(data):
            raise _wrong(where, f"a list of {len(args)}", data)
        return tuple(_decode(arg, item, f"{where}[{i}]") for i, (arg, item) in enumerate(zip(args, data, strict=True)))
    hint = args[0] if args else Any
    return origin(_decode(hint, item, f"{where}[{i}]") for i, item in enumerate(data))


def _decode_union(args: tuple[Any, ...], data: Json, where: str) -> Any:
    if data is None and type(None) in args:
        return None
    members = [arg for arg in args if arg is not type(None)]
    if isinstance(data, dict):
        values = [arg for arg in members if dataclasses.is_dataclass(arg)]
        if TAG in data and len(values) > 1:
            named = [arg for arg in values if isinstance(arg, type) and arg.__name__ == data[TAG]]
            if not named:
                known = [arg.__name__ for arg in values if isinstance(arg, type)]
                raise TilescaleError(f"{where or 'the value'}: type is known", data[TAG], nearest(data[TAG], known))
            return _decode_class(named[0], data, where)
        members = values or members
    if len(members) == 1:
        return _decode(members[0], data, where)
    for exact in members:
        if exact is type(data):
            return data
    for member in members:
        try:
            return _decode(member, data, where)
        except TilescaleError:
            continue
    raise _wrong(where, "one of " + ", ".join(getattr(m, "__name__", str(m)) for m in members), data)


def _family(cls: Any) -> dict[str, Any]:
    """``cls`` and its subclasses by name; a later class wins (``slots=True`` leaves the undecorated twin behind)."""
    found = {cls.__name__: cls}
    for sub in cls.__subclasses__():
        found.update(_family(sub))
    return found


def _decode_class(cls: type, data: Json, where: str) -> Any:
    if not isinstance(data, dict):
        raise _wrong(where, f"a table ({cls.__name__})", data)
    tagged = TAG in data and not (dataclasses.is_dataclass(cls) and any(n == TAG for n, _, _ in _fields(cls)))
    if tagged:
        family = _family(cls)
        if data[TAG] not in family:
            raise TilescaleError(f"{where or cls.__name__}: type is known", data[TAG], nearest(data[TAG], family))
        cls = family[data[TAG]]
        data = {key: item for key, item in data.items() if key != TAG}
    if not dataclasses.is_dataclass(cls):
        raise _wrong(where, f"a table with the {TAG!r} of a {cls.__name__}", data)
    fields = {name: hint for name, hint, _ in _fields(cls)}
    for key in data:
        if key not in fields:
            raise TilescaleError(f"{where or cls.__name__} has only known keys", key, nearest(key, fields))
    required = {f.name for f in dataclasses.fields(cls) if f.init and f.default is f.default_factory}
    missing = sorted(required - set(data))
    if missing:
        raise TilescaleError(f"{where or cls.__name__} has all its keys", f"missing {', '.join(missing)}", "add them")
    return cls(**{key: _decode(fields[key], item, f"{where}.{key}".lstrip(".")) for key, item in data.items()})
