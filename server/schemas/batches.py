"""Schemas of /v1/batches: a batch, and the expiry of its files."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from lightwell.server.batches.lines import PATHS
from lightwell.server.schemas.base import RequestModel, Text

MIN_EXPIRY, MAX_EXPIRY = 3600, 2_592_000
"""Least and most seconds until a file expires, as in OpenAI's API."""


class ExpiresAfter(RequestModel):
    """The age at which a file expires."""

    anchor: Literal["created_at"] = Field(description="The time from which the seconds count.")
    seconds: int = Field(ge=MIN_EXPIRY, le=MAX_EXPIRY, description="Age at which the file expires.")


_Key = Annotated[Text, StringConstraints(min_length=1, max_length=64)]
_Value = Annotated[Text, StringConstraints(max_length=512)]


class BatchRequest(RequestModel):
    """The body of POST /v1/batches."""

    input_file_id: Text = Field(description="Id of an uploaded file with a request on each line.")
    endpoint: Literal[PATHS] = Field(description="The route of every request in the file.")  # type: ignore[valid-type]
    completion_window: Literal["24h"] = Field(description="Time after which the rest of the batch expires.")
    metadata: Annotated[dict[_Key, _Value], Field(max_length=16)] | None = Field(
        None, description="Texts that are returned with the batch."
    )
    output_expires_after: ExpiresAfter | None = Field(
        None, description="Expiry of the files with the answers; by default --max-batch-age."
    )
