"""The error of schemas, patterns and grammars, and the notation of a place in them."""

from hashlib import blake2b


class GrammarError(ValueError):
    """A schema, pattern or grammar that is wrong or not supported; `path` names the place in it."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message


def step(name: str | int) -> str:
    """Write one step of a path: `.name`, `["a name"]` or `[3]`."""
    if isinstance(name, int):
        return f"[{name}]"
    if len(name) > 100:  # the path must stay unique, and short: it is part of every path below it
        name = f"{name[:100]}...{blake2b(name.encode(errors='replace'), digest_size=8).hexdigest()}"
    if name.isascii() and name.replace("$", "_").isidentifier():
        return f".{name}"
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return '["' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"]'
