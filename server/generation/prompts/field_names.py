"""The fields of a client's body that errors of a request name: each API has its own names for the same values."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from lightwell.server.generation.prompts.text_parts import CUT_ADVICE, PromptTooLong
from lightwell.server.http.errors import ApiError


@dataclass(frozen=True)
class FieldNames:
    """The names of one API for the fields of a request that is independent of APIs."""

    paths: Mapping[str, str] = field(default_factory=dict)
    """Path in the client's body of each path that differs, such as "max_tokens" or "messages[0]"."""
    cut_advice: str = CUT_ADVICE
    """The advice of how to cut a prompt that is too long, or an empty text if the API has no field for it."""
    prompt_has: str = "the prompt has"
    """The words before the length of a prompt that is too long."""

    def of(self, path: str) -> str:
        """Return the client's path of a field: the longest known path at its beginning is replaced."""
        end = len(path)
        while end > 0 and path[:end] not in self.paths:
            end = max(path.rfind(".", 0, end), path.rfind("[", 0, end))
        return self.paths[path[:end]] + path[end:] if end > 0 else path

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """Give errors that are raised inside the client's names. The message of an error begins with its field."""
        try:
            yield
        except ApiError as error:
            if isinstance(error, PromptTooLong):
                error.reword(self.prompt_has, self.cut_advice)
            if (path := error.param) is not None:
                error.param = self.of(path)
                if error.message.startswith(path):
                    error.message = error.param + error.message.removeprefix(path)
            raise


OPENAI_NAMES = FieldNames()
"""The names of OpenAI's API, which the code of requests uses itself."""
WITHOUT_TRUNCATE = FieldNames(cut_advice="")
"""The same for routes without a field that cuts prompts."""
