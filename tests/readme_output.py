"""Examples' output in documents: JSON over several lines, shortened with `...`, and its comparison with real output.

`...` is last in an object or a list, and stands for its further entries.
"""

import json
import re

WIDTH = 100
ALWAYS_ALIKE = {"id", "created", "created_at", "compute_dtype", "stacks", "usage", "logprobs", "stop_reason"}
"""Fields that are left out of JSON that does not fit into a line."""
MOST_ENTRIES = 3

EXACT = {"model", "object", "type", "role", "kind", "tokens", "axes", "num_layers", "num_heads"}
"""The fields of JSON with values that the default model gives on every processor."""


def shortened(output: str) -> str:
    """Return a command's output as a document shows it: each long line of JSON over several lines, shortened."""
    return "\n".join(_shortened(line) for line in output.splitlines())


def _shortened(line: str) -> str:
    prefix = "data: " if line.startswith("data: ") else ""
    if len(line) <= WIDTH or not line.startswith(prefix + "{"):
        return line
    return prefix + _layout(json.loads(line.removeprefix(prefix)), 0)


def _layout(value: object, indent: int, taken: int = 6) -> str:
    """Return `value` as JSON, with entries on lines of their own where it does not fit after `taken` characters."""
    plain = json.dumps(value, ensure_ascii=False)
    if len(plain) + indent + taken <= WIDTH or not isinstance(value, str | dict | list) or not value:
        return plain
    if isinstance(value, str):
        return json.dumps(value[: WIDTH - indent - taken - 6] + " ...", ensure_ascii=False)
    inner = " " * (indent + 2)
    if isinstance(value, list):
        if not isinstance(value[0], dict | list):
            fitting = [json.dumps(entry, ensure_ascii=False) for entry in value[:MOST_ENTRIES]]
            return f"[{', '.join(fitting)}, ...]"
        kept = [_layout(entry, indent + 2, 1) for entry in value[:1]] + ["..."] * (len(value) > 1)
        return "[\n" + ",\n".join(inner + entry for entry in kept) + "\n" + " " * indent + "]"
    shown = {key: entry for key, entry in value.items() if key not in ALWAYS_ALIKE}
    kept = [f"{json.dumps(key)}: {_layout(entry, indent + 2, len(key) + 5)}" for key, entry in shown.items()]
    kept += ["..."] * (len(shown) < len(value))
    return "{\n" + ",\n".join(inner + entry for entry in kept) + "\n" + " " * indent + "}"


def parsed(text: str) -> object:
    """Return JSON in which a last `...` of an object or a list has become an entry of its own. Raises ValueError."""
    text = re.sub(r"(?<=[,\[{\s])\.\.\.(?=\s*})", '"...": "..."', text)
    return json.loads(re.sub(r"(?<=[,\[\s])\.\.\.(?=\s*\])", '"..."', text))


def form(output: str) -> list[object]:
    """Return the stable part: the keys and types of JSON and some of its values, tuples and metrics without their
    numbers, "text" for other lines.

    Numbers and generated text may differ with the processor, because the last bits of products differ; ids always do.
    """
    forms: list[object] = []
    lines = [line.removeprefix("data: ") for line in output.splitlines() if line.strip()]
    while lines:
        line = lines.pop(0)
        whole = ["\n".join([line, *lines[:end]]) for end in range(len(lines) + 1)] if line.startswith("{") else []
        if value := next(filter(_is_json, whole), None):
            del lines[: value.count("\n")]
            forms.append(shape(parsed(value)))
        else:
            is_data = re.match(r"\[|\(|lightwell_", line)
            forms.append(re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "#", line) if is_data else "text")
    return forms


def _is_json(text: str) -> bool:
    try:
        parsed(text)
    except ValueError:
        return False
    return True


def shape(value: object) -> object:
    if isinstance(value, dict):
        return {key: item if key in EXACT else shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def covers(shown: object, real: object) -> bool:
    """Return whether the form of an output in a document equals the form of the real output, `...` aside."""
    if isinstance(shown, dict) and isinstance(real, dict):
        named = shown.keys() - {"..."}
        if not (named < real.keys() if "..." in shown else named == real.keys()):
            return False
        return all(covers(shown[key], real[key]) for key in named)
    if isinstance(shown, list) and isinstance(real, list):
        if shown and shown[-1] == "...":
            return all(covers(*pair) for pair in zip(shown[:-1], real, strict=False))
        return len(shown) == len(real) and all(covers(*pair) for pair in zip(shown, real, strict=True))
    return shown == real
