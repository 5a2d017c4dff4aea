"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, as in vLLM: load and unload LoRA adapters at run time.

The routes exist only with --lora-root; where there are keys, they need an admin key.
"""

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response

from lightwell.model.checkpoint.lora_config import CONFIG_FILE, WEIGHTS_FILE
from lightwell.server.config.lora_settings import ADAPTER_NAME, ADAPTER_NAME_RULE, resolved_root
from lightwell.server.generation.context import AppContext
from lightwell.server.http.errors import BadRequest, NotFound, shown
from lightwell.server.schemas.adapters import LoadAdapterRequest, UnloadAdapterRequest


def add_routes(router: APIRouter, context: AppContext) -> None:
    """Add both routes to the router, if adapters may be loaded at run time."""
    root = resolved_root(context.settings.lora_root)
    if root is None:
        return

    @router.post("/v1/load_lora_adapter", tags=["models"], summary="Load a LoRA adapter", response_model=None)
    async def load(body: LoadAdapterRequest) -> Response:
        """Load an adapter in peft's format on every worker of a model; then its name is accepted as a model's."""
        name, (model, _) = body.lora_name, await context.models.find(body.base_model_name)
        if not ADAPTER_NAME.fullmatch(name) or (context.models.knows(name) and model.adapters.find(name) is None):
            raise BadRequest(
                f"lora_name: {shown(name)} is not usable; {ADAPTER_NAME_RULE} are accepted, and not a model's name.",
                param="lora_name",
                code="invalid_value",
            )
        await model.adapters.load(name, folder_inside(root, body.lora_path))
        await model.adapters.announce()
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")

    @router.post("/v1/unload_lora_adapter", tags=["models"], summary="Unload a LoRA adapter", response_model=None)
    async def unload(body: UnloadAdapterRequest) -> Response:
        """Serve an adapter no longer. Requests that have begun keep it to their end."""
        model, _ = await context.models.find(body.lora_name if context.models.knows(body.lora_name) else None)
        model.adapters.unload(body.lora_name)
        await model.adapters.announce()
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def folder_inside(root: Path, path: str) -> Path:
    """Return the folder of an adapter, without links. path: relative to `root`, or an absolute path inside it.

    Raises BadRequest if the path or the adapter's files leave `root`, by `..` or a link, and NotFound without a folder.
    Links may change before the worker opens the files: it checks the opened files (`model.checkpoint.files`).
    """
    outside = BadRequest(
        f"lora_path: {shown(path)} is not inside the server's --lora-root; a folder inside it, without '..' and links "
        "out of it, is accepted.",
        param="lora_path",
        code="lora_path_outside",
    )
    try:
        if ".." in Path(path).parts:
            raise outside
        folder = (root / path).resolve()
        files = [folder, *((folder / name).resolve() for name in (CONFIG_FILE, WEIGHTS_FILE))]
        if not all(each.is_relative_to(root) for each in files):
            raise outside
        is_folder = folder.is_dir()
    except (OSError, ValueError, RuntimeError):  # a path that is too long, holds a zero, or is a loop of links
        is_folder = False
    if not is_folder:
        raise NotFound(
            f"lora_path: there is no folder {shown(path)} in the server's --lora-root.",
            param="lora_path",
            code="lora_not_found",
        )
    return folder
