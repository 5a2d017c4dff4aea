"""The models of this machine: built-in models, the installed SmolLM2, and the Hugging Face cache."""

from typing import Any

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.resolve import BUILT_IN, resolve, root_of


def local_models() -> list[dict[str, Any]]:
    """Return each model: its name as `lightwell serve` takes it, its revision, its bytes and its path."""
    import huggingface_hub  # here: most commands do not need it
    from huggingface_hub.errors import CacheNotFound

    found: list[dict[str, Any]] = []
    for name in BUILT_IN:
        try:
            path = root_of(resolve(name))
        except ModelLoadError:  # not installed
            continue
        size = sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
        found.append({"name": name, "revision": None, "bytes": size, "path": str(path)})
    try:
        repositories = huggingface_hub.scan_cache_dir().repos
    except CacheNotFound:
        repositories = frozenset()
    for repository in sorted(repositories, key=lambda each: each.repo_id):
        for revision in repository.revisions if repository.repo_type == "model" else ():
            if any(file.file_name == "config.json" or file.file_name.endswith(".gguf") for file in revision.files):
                shown = ", ".join(sorted(revision.refs)) or revision.commit_hash
                found.append({"name": repository.repo_id, "revision": shown, "bytes": revision.size_on_disk})
                found[-1]["path"] = str(revision.snapshot_path)
    return found


def as_table(models: list[dict[str, Any]]) -> str:
    """Return the models for people: one line each, the name first."""
    from rich.filesize import decimal

    rows = [(each["name"], str(each["revision"] or "-")[:12], decimal(each["bytes"])) for each in models]
    names, revisions, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    return "\n".join(f"{row[0]:<{names}}  {row[1]:<{revisions}}  {row[2]:>9}" for row in rows)
