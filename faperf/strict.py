"""Strict YAML: what a file says as a msgspec type, or an error that names the line, the key and the nearest known key."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

import msgspec
import yaml

from faperf.errors import ManifestError

T = TypeVar("T")


def parse(text: str, where: str, kind: type[T], schema: int) -> tuple[T, Any]:
    """YAML as `kind`, and the plain values of which that was made. `schema` is the number that the file must say, if it says
    one. Raises ManifestError.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        _refuse_aliases(node, where)
        content = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ManifestError(f"not valid YAML: {error.problem}", where=where + line) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ManifestError(f"not valid YAML: {error}", where=where) from error
    finally:
        loader.dispose()
    if isinstance(content, dict) and content.get("schema", schema) != schema and isinstance(content["schema"], int):
        raise ManifestError(
            f"schema {content['schema']}; this faperf reads {schema}",
            where=where,
            remedy="upgrade faperf" if content["schema"] > schema else f"write schema: {schema}",
        )
    unknown = list(_unknown_keys(node, _type_info(kind), ""))  # type: ignore[arg-type]
    if unknown:
        first_line, _, _, first_known = unknown[0]
        text = "; ".join(f"line {n}: unknown key '{place}'{_nearest(key, known)}" for n, place, key, known in unknown)
        raise ManifestError(text, where=f"{where}:{first_line}", remedy="known here: " + ", ".join(first_known))
    try:
        return msgspec.convert(content, kind), content
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at ")
        trail = place.strip("`").removeprefix("$").removeprefix(".")
        what = f"{trail}: {message}" if trail else message
        raise ManifestError(what, where=f"{where}:{_line_of(node, trail)}") from error


_type_info = cache(msgspec.inspect.type_info)


class _Loader(yaml.CSafeLoader):
    """PyYAML's safe loader, but a key written twice is an error instead of the last one winning."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key '{key}' is written twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_BOOL = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile("true|false"), list("tf"))  # `off` and `no` are words, as in YAML 1.2


def _refuse_aliases(root: yaml.Node | None, where: str) -> None:
    """A few aliases of aliases unfold into gigabytes; a manifest needs none."""
    seen: set[int] = set()
    waiting = [root] if root is not None else []
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            raise ManifestError("YAML aliases (*name) are not read here", where=f"{where}:{node.start_mark.line + 1}")
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            waiting.extend(part for pair in node.value for part in pair)
        elif isinstance(node, yaml.SequenceNode):
            waiting.extend(node.value)


def _unknown_keys(
    node: yaml.Node | None, kind: msgspec.inspect.Type, place: str
) -> Iterator[tuple[int, str, str, list[str]]]:
    """(line, place, key, known keys) of every key in a YAML tree that its struct does not have."""
    inspect = msgspec.inspect
    if isinstance(kind, inspect.UnionType):
        for option in kind.types:
            if isinstance(option, inspect.StructType | inspect.ListType | inspect.DictType):
                yield from _unknown_keys(node, option, place)
    elif isinstance(kind, inspect.StructType) and isinstance(node, yaml.MappingNode):
        fields = {f.encode_name: f.type for f in kind.fields}
        for key_node, value in node.value:
            here = f"{place}.{key_node.value}" if place else str(key_node.value)
            if key_node.value in fields:
                yield from _unknown_keys(value, fields[key_node.value], here)
            else:
                yield key_node.start_mark.line + 1, here, str(key_node.value), list(fields)
    elif isinstance(kind, inspect.ListType) and isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _unknown_keys(item, kind.item_type, f"{place}[{index}]")
    elif isinstance(kind, inspect.DictType) and isinstance(node, yaml.MappingNode):
        for key_node, value in node.value:
            yield from _unknown_keys(value, kind.value_type, f"{place}.{key_node.value}")


def _nearest(key: str, known: list[str]) -> str:
    import difflib  # for a word that is not known

    match = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f" (did you mean '{match[0]}'?)" if match else ""


def _line_of(node: yaml.Node | None, trail: str) -> int:
    """The line of the value at a path such as `launches[0].grid`, or of the nearest thing above it."""
    line = node.start_mark.line + 1 if node is not None else 1
    for step in re.findall(r"[^.\[\]]+", trail):
        if isinstance(node, yaml.SequenceNode) and step.isdigit() and int(step) < len(node.value):
            node = node.value[int(step)]
        elif isinstance(node, yaml.MappingNode):
            node = next((value for key, value in node.value if key.value == step), None)
        else:
            node = None
        if node is None:
            break
        line = node.start_mark.line + 1
    return line
