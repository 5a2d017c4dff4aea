"""Program of the process that renders chat templates: jinja's own sandbox within limits that the kernel enforces.

It reads a template and its variables, each one line of JSON, answers with a line of JSON and the text, and ends when
its parent closes the socket. A template has the functions of `transformers`, and `append` and `pop` of lists.
`model.tokenization.template_client` starts it. It imports no module of Lightwell.
"""

import contextlib
import gc
import json
import resource
import signal
import sys
from datetime import datetime
from pathlib import Path
from traceback import walk_tb
from typing import Any

import jinja2
import jinja2.debug  # jinja imports it at the first error, when no file can be opened any more
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class _Generation(Extension):
    """The `{% generation %}` tag, which marks the assistant's text for training; here only its body is written."""

    tags = {"generation"}  # noqa: RUF012 - jinja reads it from the class

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Sandbox(ImmutableSandboxedEnvironment):
    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # Some templates keep the ids of calls in a list.
        return (isinstance(obj, list) and attr in ("append", "pop")) or super().is_safe_attribute(obj, attr, value)


class _TemplateNamespace(Namespace):
    """jinja's `namespace`, without names that could access Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        for name in dict(*rest, **kwargs):
            _check_name(name)
        Namespace.__init__(self, *rest, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.TemplateRuntimeError(f"namespace attribute {name!r} may not begin with an underscore")


class _Refused(jinja2.TemplateError):
    """An error message for the client, of the template or about its text."""


def _raise(message: str) -> None:
    raise _Refused(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter would escape <, > and & for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def template_environment() -> ImmutableSandboxedEnvironment:
    """Return the environment of chat templates in `transformers`, in which lists may also be changed."""
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals |= {"raise_exception": _raise, "strftime_now": _strftime_now, "namespace": _TemplateNamespace}
    return environment


class _Renderer:
    """A renderer that keeps the last compiled template."""

    def __init__(self, max_characters: int) -> None:
        self._max_characters = max_characters
        self._environment = template_environment()
        self._source = b""
        self._template = self._environment.from_string("{{ strftime_now('%Z') }}")
        self._template.render()  # reads the files of the time zone, and a codec, while files can be opened

    def answer(self, source: bytes, variables: bytes) -> bytes:
        """Return one line of JSON with the error or null, its details for the log, and the number of bytes of the text;
        then the text. For null variables the text is empty.
        """
        text, error, detail = b"", None, ""
        try:
            if source != self._source:
                self._template = self._environment.from_string(json.loads(source))
                self._source = source
            if (values := json.loads(variables)) is not None:
                text = self._render(values).encode("utf-8", "surrogatepass")
        except jinja2.TemplateSyntaxError as problem:
            error = f"chat template, line {problem.lineno}: {_one_line(problem)}"
        except MemoryError:
            error = "chat template: the template takes more memory than it may"
        except _Refused as problem:
            error = f"chat template: {_one_line(problem)}"
        except Exception as problem:
            # A template is an external program: any failure of it is an error of this conversation.
            lines = [line for frame, line in walk_tb(problem.__traceback__) if frame.f_code.co_filename == "<template>"]
            error = f"chat template{f', line {lines[-1]}' if lines else ''}: it fails on this conversation"
            detail = f"{error}: {type(problem).__name__}: {_one_line(problem)}"[:1000]
        return json.dumps([error, detail, len(text)]).encode() + b"\n" + text

    def _render(self, variables: dict[str, Any]) -> str:
        parts, size = [], 0
        for part in self._template.generate(variables):
            size += len(part)
            if size > self._max_characters:
                raise _Refused(f"the template writes more than {self._max_characters} characters")
            parts.append(part)
        return "".join(parts)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def main(max_seconds: float, max_memory: int, max_characters: int) -> None:
    """Answer questions until the parent closes the socket.

    An answer that takes more than `max_seconds` of CPU time ends the process with SIGPROF. Allocations of private
    memory over `max_memory` bytes fail, even unused ones.
    """
    renderer = _Renderer(max_characters)
    questions = open(0, "rb", buffering=1 << 18)  # noqa: SIM115 - it lives as long as the process
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # These signals are sent to all processes of a terminal or a unit; the parent handles them.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # if memory runs out, the kernel kills this process before a worker
        Path("/proc/self/oom_score_adj").write_text("1000")
    for limit, most in ((resource.RLIMIT_DATA, max_memory), (resource.RLIMIT_NOFILE, 0)):
        with contextlib.suppress(ValueError, OSError):  # a lower limit is set already, or the system has none
            resource.setrlimit(limit, (most, most))
    gc.freeze()
    for source in questions:
        variables = questions.readline()
        signal.setitimer(signal.ITIMER_PROF, max_seconds)
        answer = renderer.answer(source, variables)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
