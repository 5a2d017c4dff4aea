"""Computes attention, traces or embeddings of a data set of any size, with Ray Data:

    python -m deploy.ray.batch --input texts.jsonl --output FOLDER --task embedding --workers 4

Files are cut into shards, read by tasks, answered by actors that each hold an engine, and written by them. This process
holds numbers of shards and counts, no rows. If it is run again, it makes the shards that are missing (docs/ray.md).

Exit status: 0 when every row has its answer, 3 when some rows are errors, 1 when the job could not continue, 2 for a
command line that makes no sense.
"""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.ray.batch_engine import BatchFailed, Job, portable_fingerprint
from deploy.ray.batch_input import Columns, InputError, find_files, parts_of
from deploy.ray.batch_manifest import ManifestError, claim, held
from deploy.ray.batch_pipeline import Plan, Workers, cluster, made_shards, scan_all
from deploy.ray.batch_tasks import Planner, context_of, task_names
from deploy.ray.batch_writers import remove_unfinished
from deploy.ray.shards import ShardError, ShardSummary, read_summary, shard_path
from model.checkpoint.folder import ModelLoadError
from model.tokenization.chat_template import ChatTemplateError
from server.config.setting_names import flag_name
from server.config.settings import Settings, SettingsError
from server.http.errors import ApiError
from server.lifecycle.app import ModelFiles, load_model_files

SOME_ROWS_FAILED = 3

_OF_THE_NUMBERS = (
    "dtype", "quantize", "device", "threads", "max_model_len", "block_size", "batch_invariant", "no_batch_invariant",
    "kernels", "kernel_arithmetic", "activations", "no_compile", "max_response_bytes",
)  # fmt: skip
"""Settings of the server that an answer may depend on: they are part of the manifest."""
_OF_THE_RUN = (
    "max_num_seqs", "max_num_batched_tokens", "kv_cache_memory", "gpu_memory_utilization", "max_capture_bytes",
    "no_prefix_caching",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
    try:
        settings = _settings(arguments, os.environ)
        options = _options(arguments.options)
        folder = Path(arguments.output).resolve()
        files = find_files(arguments.input)
        model = load_model_files(settings)
        address = arguments.address or os.environ.get("RAY_ADDRESS")
        Planner(context_of(settings, model, None), arguments.task, options)  # raises now if the options are wrong
        folder.mkdir(parents=True, exist_ok=True)
        with held(folder), cluster(address, arguments.object_store_memory):
            plan = _plan(arguments, settings, options, folder, files, model)
            total = _run(plan, arguments)
            remove_unfinished(folder)  # of engines that were killed while others continued
        return _report(total, folder)  # behind all that Ray has to say
    except (ApiError, ChatTemplateError, InputError, ManifestError, ModelLoadError, SettingsError) as error:
        return _fail(str(error), 2)
    except (BatchFailed, ShardError, OSError) as error:
        return _fail(str(error), 1)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.ray.batch", description=(__doc__ or "").partition("\n")[0], allow_abbrev=False
    )
    add = parser.add_argument
    add("--model", metavar="MODEL", help="model folder or hub id; the model that ships with Lightwell if left out")
    add("--input", metavar="PATH", nargs="+", required=True, help="files (.jsonl, .parquet, .txt) or folders of them")
    add("--output", metavar="FOLDER", required=True, help="where the shards go; a folder that all machines see")
    add("--task", choices=task_names(), required=True, help="which route answers the rows")
    add("--options", metavar="JSON", default="{}", help='fields of the route\'s body, such as {"layers": [2]}')
    add("--format", choices=("parquet", "safetensors"), default="parquet", help="of the shards")
    add("--rows-per-shard", metavar="N", type=_positive, default=1000, help="most rows of one shard (1000)")
    add("--text-column", metavar="NAME", default="text", help="of JSON lines and Parquet (text)")
    add("--key-column", metavar="NAME", help="is copied to the output next to the row's number")
    add("--workers", metavar="N", type=_positive, default=1, help="engines (1)")
    add("--cpus-per-worker", metavar="N", type=float, default=1.0, help="that Ray sets aside for each (1)")
    add("--gpus-per-worker", metavar="N", type=float, help="likewise (1 with --device cuda, else 0)")
    add("--address", help="of a Ray cluster, or auto; else RAY_ADDRESS, else a cluster on only this machine is started")
    add("--object-store-memory", metavar="BYTES", type=_positive, help="of such a cluster of this machine")
    add("--no-progress", action="store_true", help="show no progress bar")
    for name in (*_OF_THE_NUMBERS, *_OF_THE_RUN):
        setting = Settings.__dataclass_fields__[name]
        kind = setting.metadata["type"]
        shape: dict[str, Any] = {"action": "store_true"} if kind.is_flag else {"metavar": kind.metavar}
        add(flag_name(name), help="as of `lightwell serve`", **shape)
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _settings(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    flags = {name: getattr(arguments, name) for name in ("model", *_OF_THE_NUMBERS, *_OF_THE_RUN)}
    settings = Settings.from_sources(flags, environ)
    if settings.threads is None:  # answers depend on it, so it must not differ between machines
        settings = dataclasses.replace(settings, threads=max(1, int(arguments.cpus_per_worker)))
    return settings


def _options(text: str) -> dict[str, Any]:
    try:
        options = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"--options: {text!r} is no JSON: {error}") from None
    if not isinstance(options, dict):
        raise SettingsError(f"--options: {text!r} is no JSON object")
    return options


def _plan(
    arguments: argparse.Namespace,
    settings: Settings,
    options: Mapping[str, Any],
    folder: Path,
    files: list[Path],
    model: ModelFiles,
) -> Plan:
    """Scan the input, compare it with the folder's manifest and shards, and return the plan."""
    columns = Columns(text=arguments.text_column, key=arguments.key_column)
    scans = scan_all(files, arguments.rows_per_shard, columns)
    parts = parts_of(list(zip(files, scans, strict=True)), arguments.rows_per_shard)
    sizes = [size for part in parts for size in part.shard_sizes.values()]
    job = Job(
        settings=settings,
        task=arguments.task,
        options=options,
        file_format=arguments.format,
        folder=str(folder),
        model=portable_fingerprint(model.fingerprint),
    )
    named = zip(files, scans, strict=True)
    manifest = {
        "task": job.task,
        "options": dict(options),
        "format": job.file_format,
        "rows_per_shard": arguments.rows_per_shard,
        "num_shards": len(sizes),
        "num_rows": sum(sizes),
        "columns": dataclasses.asdict(columns),
        "input": [{"name": path.name, "rows": found.num_rows, "sha256": found.sha256} for path, found in named],
        "settings": {name: getattr(settings, name) for name in _OF_THE_NUMBERS},
        "model": dict(job.model),
    }
    claim(folder, manifest)
    remove_unfinished(folder)
    paths = {number: shard_path(folder, number, job.file_format) for number in range(len(sizes))}
    done = {number: read_summary(path) for number, path in paths.items() if path.exists()}
    return Plan(job, columns, parts, done)


# ---- the pipeline


def _run(plan: Plan, arguments: argparse.Namespace) -> ShardSummary:
    """Make the missing shards, and return the sums of all shards. Raises BatchFailed."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    total = sum(plan.done.values(), ShardSummary())
    with tqdm(total=plan.num_rows, initial=total.rows, unit=" rows", disable=arguments.no_progress) as bar:
        bar.set_postfix(errors=total.errors)
        for made in made_shards(plan, _workers(plan.job, arguments)):
            total += made
            bar.update(made.rows)
            bar.set_postfix(errors=total.errors)
    if total.rows != plan.num_rows:
        raise BatchFailed(f"{total.rows} of {plan.num_rows} rows were written; run the same command again")
    return total


def _workers(job: Job, arguments: argparse.Namespace) -> Workers:
    gpus = arguments.gpus_per_worker
    if gpus is None:
        gpus = 1.0 if job.settings.device == "cuda" else 0.0
    return Workers(number=arguments.workers, cpus=arguments.cpus_per_worker, gpus=gpus)


# ---- the end


def _report(total: ShardSummary, folder: Path) -> int:
    print(f"{total.rows} rows, {total.tokens} tokens, {total.errors} errors: {folder}", flush=True)
    return SOME_ROWS_FAILED if total.errors else 0


def _fail(message: str, status: int) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
