"""The base of every type that is read from JSON."""

from pydantic import BaseModel, ConfigDict


class Result(BaseModel):
    """A frozen answer; a field that the server adds is kept in `model_extra`, and is never an error."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())
