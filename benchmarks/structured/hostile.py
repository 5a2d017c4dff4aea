"""Measure the cost of hostile schemas, patterns and grammars, each in a separate process.

    python -m benchmarks.structured.hostile

Prints for each the time to write, check and compile the grammar, the time of the first masks, the memory, and the
longest time in which other threads could not run (the interpreter's lock). Inputs of over a second are marked.
"""

import resource
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from benchmarks.structured.apart import result_apart
from lightwell.model.sampling.grammar.checking import END, check
from lightwell.model.sampling.grammar.deep_stack import deep_stacks
from lightwell.model.sampling.grammar.errors import GrammarError
from lightwell.model.sampling.grammar.gbnf import gbnf_grammar
from lightwell.model.sampling.grammar.json_schema import json_schema_grammar
from lightwell.model.sampling.grammar.structural_tags import structural_tag_grammar
from lightwell.model.sampling.grammar.texts import choice_grammar, lark_or_ebnf_grammar, regex_grammar
from tests.support.walking import matcher

MEMORY = 2 << 30
"""Address space of each process, in bytes."""
TIMEOUT = 20
"""Seconds until a process is ended."""


def nested(kind: str, depth: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema} if kind == "array" else {kind: [schema, {"type": "null"}]}
    return schema


def names(count: int, **more: Any) -> Any:
    return {"type": "object", "properties": {f"name{n}": {"type": "string"} for n in range(count)}, **more}


def schemas() -> dict[str, Any]:
    doubling = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(20)}
    choosing = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"minimum": n}]} for n in range(60)}
    crossing = {"allOf": [{"anyOf": [{"minimum": 10 * a + b} for b in range(4)]} for a in range(12)]}
    tuples = [
        {"type": "object", "properties": {"k": {"allOf": [{"$ref": "#"}, {"$ref": "#/$defs/x"}]}}},
        {"type": "object", "properties": {"k": {"allOf": [{"$ref": "#/$defs/x"}, {"$ref": "#"}]}, "j": {"$ref": "#"}}},
    ]
    return {
        "arrays 30 deep": nested("array", 30),
        "anyOf 30 deep": nested("anyOf", 30),
        "arrays 500 deep": nested("array", 500),
        "1000 properties, all optional": names(1000),
        "5000 properties": names(5000),
        "300 optional, maxProperties 100": names(300, maxProperties=100),
        "500 optional": names(500),
        "500 optional in each of 4": {"anyOf": [{**names(500), "title": "x"}] * 4},
        "4 patterns at once": {"allOf": [{"type": "string", "pattern": f"a.{{{n}}}[ab]{{1,9}}.*b"} for n in range(4)]},
        "1000 required": names(1000, required=[f"name{n}" for n in range(1000)]),
        "1000 names and more properties": names(1000, additionalProperties=True),
        "enum of 10,000": {"enum": [f"a value of some length {n}" for n in range(10_000)]},
        "enum of 40,000 numbers": {"enum": list(range(40_000))},
        "doubling refs": {"$defs": {**doubling, "d20": {"type": "integer"}}, "$ref": "#/$defs/d0"},
        "chain of anyOf": {"$defs": {**choosing, "d60": {"type": "integer"}}, "$ref": "#/$defs/d0"},
        "crossing anyOf": crossing,
        "refs that refer to each other": {"$ref": "#/$defs/x", "$defs": {"x": tuples[0]}, **tuples[1]},
        "loop": {"$ref": "#"},
        "never ends": {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}},
        "minLength 10,000": {"type": "string", "minLength": 10_000},
        "maxLength 10**9": {"type": "string", "maxLength": 10**9},
        "50 texts of maxLength 10,000": {"type": "array", "prefixItems": [{"maxLength": 9000 + n} for n in range(50)]},
        "minItems 1000": {"type": "array", "items": {"type": "integer"}, "minItems": 1000},
        "arrays of 1000, 5 deep": {"$defs": {}, **nested_arrays(5)},
        "pattern (a{1000}){1000}": {"type": "string", "pattern": "(a{1000}){1000}"},
        "pattern (a|b)*a(a|b){30}": {"type": "string", "pattern": "^(a|b)*a(a|b){30}$"},
        "pattern (x+x+)+y": {"type": "string", "pattern": "(x+x+)+y"},
        "pattern with maxLength": {"type": "string", "pattern": r"^(\w+\s?)+$", "maxLength": 5000},
        "email with pattern": {
            "type": "string",
            "format": "email",
            "pattern": r"^\w+([.-]?\w+)*@\w+([.-]?\w+)*(\.\w{2,})+$",
        },
        "30 patterns at once": {"allOf": [{"type": "string", "pattern": f"a{n}.*b"} for n in range(30)]},
        "40 patternProperties": {"type": "object", "patternProperties": {f"a.*{n}": {} for n in range(40)}},
        "name in a slow pattern": {
            "type": "object",
            "properties": {"a" * 60: {}},
            "patternProperties": {"(a|a)" * 30 + "b": {}, "(a+)+b": {}},
        },
        "enum in a slow pattern": {"enum": ["a" * 60], "pattern": "(a|a){60}b"},
        "multipleOf 9973": {"type": "integer", "multipleOf": 9973},
        "100 multipleOf": {
            "prefixItems": [{"type": "integer", "multipleOf": 7000 + n} for n in range(100)],
            "type": "array",
        },
        "number between digits": {"type": "number", "minimum": -1e-300, "maximum": 1e99},
        "$ref to a long name": {"$ref": "#/" + "a" * 900_000},
        "oneOf of 50": {
            "oneOf": [{"properties": {"k": {"const": n}, "v": {"$ref": "#"}}, "type": "object"} for n in range(50)]
        },
        "any value": True,
    }


def cases() -> dict[str, tuple[Callable[[Any], str], Any]]:
    """Return all hostile inputs, each with the function that reads it."""
    listed: dict[str, tuple[Callable[[Any], str], Any]] = {
        name: (json_schema_grammar, schema) for name, schema in schemas().items()
    }
    patterns = [
        "(a{1000}){1000}",
        "((a{0,100}){0,100}){0,100}",
        "a{100000}",
        "(a|b)*a(a|b){20}",
        "(.{0,300}x){300}",
        r"(\w{1,100} ){1,100}",
        "(" * 500 + "a" + ")" * 500,
        "|".join(f"word{n}.*" for n in range(1000)),
        r"(.*a){20}",
        r"(?i)" + "abc" * 1000,
        r"[\p{L}\p{N}]{1,5000}",
    ]
    listed |= {f"regex {pattern[:30]}": (regex_grammar, pattern) for pattern in patterns}
    listed["10,000 choices"] = (choice_grammar, [f"the choice number {n}" for n in range(10_000)])
    listed["gbnf counted"] = (gbnf_grammar, "root ::= (([a-z]{1,500}){1,500}){1,500}")
    listed["gbnf doubling"] = (
        gbnf_grammar,
        "root ::= r0\n" + "\n".join(f"r{n} ::= r{n + 1} r{n + 1}" for n in range(60)) + '\nr60 ::= "a"',
    )
    listed["gbnf ambiguous"] = (gbnf_grammar, 'root ::= root root root | "a" | root?')
    listed["gbnf choosing in recursion"] = (gbnf_grammar, 'root ::= ("a" | "ab" | "abc" | root "x" root){1,9000}')
    listed["lark counted"] = (lark_or_ebnf_grammar, "start: ((A{1,900}){1,900}){1,900}\nA: /[a-z]{1,900}/\n")
    listed["lark negated"] = (lark_or_ebnf_grammar, "start: A\nA: ~/(?s:.*)a.{18}b(?s:.*)/ & /(?s:.*)c.{18}d(?s:.*)/\n")
    for length in (4_900, 13_000):
        rules = "".join(f'r{n}: "a" r{n + 1}\n' for n in range(length))
        listed[f"lark chain of {length}"] = (lark_or_ebnf_grammar, f'start: r0\n{rules}r{length}: "z"\n')
    rules = "".join(f'r{n} ::= "a" r{n + 1}\n' for n in range(4_900))
    listed["gbnf chain of 4900"] = (gbnf_grammar, f'root ::= r0\n{rules}r4900 ::= "z" root\n')
    tags = [{"begin": f"<{n}>", "schema": names(20), "end": "</>"} for n in range(100)]
    listed["100 tags"] = (structural_tag_grammar, {"structures": tags, "triggers": ["<"]})
    return listed


def nested_arrays(depth: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema, "minItems": 100, "maxItems": 900}
    return schema


class Ticking(threading.Thread):
    """Wakes every 5 ms, and notes the longest time that it did not."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest = 0.0

    def run(self) -> None:
        last = time.perf_counter()
        while True:
            time.sleep(0.005)
            now = time.perf_counter()
            self.longest = max(self.longest, now - last)
            last = now


def measured(write: Callable[[Any], str], given: Any) -> tuple[list[float], float, float, str]:
    """Write, check and compile the grammar and accept some tokens. Return the time of each, the longest hold of the
    interpreter's lock, the memory in MB, and the message.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    ticking = Ticking()
    ticking.start()
    times, said = [], ""
    began = time.perf_counter()

    def lap() -> None:
        nonlocal began
        times.append(time.perf_counter() - began)
        began = time.perf_counter()

    try:
        grammar = write(given)
        lap()
        check(grammar)
        lap()
        started = matcher(grammar)
        lap()
        for _ in range(30):
            allowed = [token for token, bias in enumerate(started.compute_logit_bias()[: END + 1]) if bias]
            if not allowed or started.is_stopped() or allowed == [END]:
                break
            started.consume_token(next((t for t in b"aw5" if t in allowed), allowed[0]))
        lap()
        said = started.get_error() if started.is_error() else ""
    except (GrammarError, ValueError) as error:
        lap()
        said = f"refused: {error}"
    except MemoryError:
        said = "MEMORY"
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return times, ticking.longest, memory, said.splitlines()[0][:90] if said else ""


def measured_deep(write: Callable[[Any], str], given: Any) -> tuple[list[float], float, float, str]:
    """Do it on a stack as large as the server's threads have."""
    with deep_stacks(), ThreadPoolExecutor(1) as thread:
        return thread.submit(measured, write, given).result()


def main() -> None:
    print(f"{'':32}{'write':>7}{'check':>7}{'compile':>8}{'30 steps':>9}  s{'MB':>6}{'lock':>8} ms")
    for name, (write, given) in cases().items():
        found = result_apart(partial(measured_deep, write, given), TIMEOUT)
        ended = f"MORE THAN {TIMEOUT} s" if found is None else f"DIED ({found})"
        times, longest, memory, said = found if isinstance(found, tuple) else ([], 0, 0, ended)
        columns = "".join(f"{t:{width}.3f}" for t, width in zip(times, [7, 7, 8, 9], strict=False))
        mark = "  <<<" if sum(times) > 1 or not times else ""
        print(f"{name[:31]:32}{columns:31}  {memory:7.0f}{longest * 1000:8.0f}  {said}{mark}", flush=True)


if __name__ == "__main__":
    main()
