"""Random JSON schemas, and the judge of the texts that are written for them: the `jsonschema` package."""

from fractions import Fraction
from typing import Any

import jsonschema
from hypothesis import strategies as st

NAMES = st.sampled_from(["a", "b", "c d", "x-1", 'quo"te', "é"])
NUMBERS = st.one_of(st.integers(-30, 30), st.sampled_from([0.5, -2.25, 1e-3, 17.125, 1e16, -0.1, 100000]))
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.sampled_from(["", "a", "zz", "\n", "é", "\u0001", '"']))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2), max_leaves=4
)
PATTERNS = st.sampled_from(
    [
        "^a",
        *['^[^"]+$', r"^[^\\]{2}", r"\W", r"^[\s\S]{2}$"],
        "b$",
        "^[a-c]{1,3}$",
        "a|b",
        "^(x|yy)+$",
        r"^\d{2}-\w$",
        "^.{2}$",
        "[^a]",
        "a.c",
        r"^\S\s?$",
        "^$",
        "^a|^b$",
    ]
)


def _some(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keywords)


NAMING = st.one_of(
    st.just({"enum": ["a", "b", "x-1"]}),
    _some(type=st.just("string"), minLength=st.integers(0, 2), maxLength=st.integers(0, 3), pattern=PATTERNS),
)
"""Schemas of names."""
ONCE = st.fixed_dictionaries(
    {"uniqueItems": st.just(True), "items": st.fixed_dictionaries({"enum": st.lists(VALUES, min_size=1, max_size=5)})},
    optional={"minItems": st.integers(0, 5), "maxItems": st.integers(0, 5)},
)
"""Schemas of arrays with unique items."""

LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.booleans(),
    st.just({}),
    st.fixed_dictionaries({"const": VALUES}),
    st.fixed_dictionaries({"enum": st.lists(VALUES, min_size=1, max_size=4)}),
    _some(
        type=st.sampled_from(["number", "integer", ["integer", "null"]]),
        minimum=NUMBERS,
        maximum=NUMBERS,
        exclusiveMinimum=NUMBERS,
        exclusiveMaximum=NUMBERS,
        multipleOf=st.sampled_from([1, 2, 3, 7, 0.1, 0.01, 5]),
    ),
    _some(
        type=st.just("string"),
        minLength=st.integers(0, 4),
        maxLength=st.integers(0, 6),
        pattern=PATTERNS,
        format=st.sampled_from(["date", "time", "ipv4", "uuid", "email", "unknown"]),
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["string", "null", "boolean", "object", "array", ["string", "object"]])}
    ),
)


def _holding(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    listed = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(NAMES, inner, max_size=3)
    count = st.integers(0, 3)
    return st.one_of(
        _some(
            type=st.just("object"),
            properties=named,
            required=st.lists(NAMES, max_size=2, unique=True),
            additionalProperties=inner,
            patternProperties=st.dictionaries(st.sampled_from(["^x", "a", r"^\w$", "d|e"]), inner, max_size=2),
            propertyNames=NAMING
            | st.fixed_dictionaries({}, optional={"allOf": st.lists(NAMING, min_size=1, max_size=2)}),
            minProperties=count,
            maxProperties=count,
            unevaluatedProperties=inner,
        ),
        _some(
            type=st.just("array"),
            items=inner,
            prefixItems=listed,
            minItems=count,
            maxItems=count,
            uniqueItems=st.booleans(),
            unevaluatedItems=inner,
        ),
        ONCE,
        _some(anyOf=listed, allOf=listed, title=st.just("t")),
        _some(oneOf=listed, properties=named),
        st.fixed_dictionaries({"$ref": st.sampled_from(["#", "#/$defs/d"])}, optional={"maximum": NUMBERS}),
        st.fixed_dictionaries({"not": inner}),
        st.fixed_dictionaries({"if": inner, "then": inner}),
        st.fixed_dictionaries({"contains": inner}),
    )


SCHEMAS = st.builds(
    lambda schema, defined: {**schema, "$defs": {"d": defined}} if isinstance(schema, dict) else schema,
    st.recursive(LEAVES, _holding, max_leaves=8),
    LEAVES,
)
"""Schemas of every keyword; some value satisfies most of them."""


def _multiple(_: Any, step: Any, value: Any, __: Any) -> Any:
    # jsonschema divides floats, by which 0.07 is no multiple of 0.01
    if isinstance(value, int | float) and not isinstance(value, bool) and Fraction(repr(value)) % Fraction(repr(step)):
        yield jsonschema.ValidationError(f"{value} is no multiple of {step}")


Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"multipleOf": _multiple})
