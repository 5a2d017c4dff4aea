"""Settings of several models: repeated flags, the variable, and `models:` in the file of --config."""

import re
import shlex
from pathlib import Path

import pytest

from lightwell.server.config.settings import Settings, SettingsError
from tests.readme import ROOT
from tests.server.config.test_settings import config_file, read


def named(settings: Settings) -> list[tuple[str | None, str | None]]:
    """Return the name and source of each model."""
    return [(each.served_model_name, each.source) for each in settings.of_models()]


def test_a_flag_names_a_model_and_is_repeated_for_several() -> None:
    settings = read("--model", "chat=org/name", "--model", "fables", "--model", "org/a:b=/models/my file.gguf")
    assert named(settings) == [("chat", "org/name"), (None, "fables"), ("org/a:b", "/models/my file.gguf")]
    assert named(read("chat=org/name")) == named(read("--model", "chat=org/name")) == [("chat", "org/name")]
    assert named(read()) == [(None, None)]


def test_the_variable_has_commas_between_named_models() -> None:
    assert named(read(LIGHTWELL_MODEL="a=/x,b=org/y,c=z")) == [("a", "/x"), ("b", "org/y"), ("c", "z")]
    assert named(read(LIGHTWELL_MODEL="/with,comma")) == [(None, "/with,comma")]
    assert named(read(LIGHTWELL_MODEL="a=/with,comma,b=/more,commas,in it")) == [
        ("a", "/with,comma"), ("b", "/more,commas,in it"),
    ]  # fmt: skip
    assert named(read("--model", "c=flag", LIGHTWELL_MODEL="a=x,b=y")) == [("c", "flag")]


def test_a_path_with_an_equals_sign_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lr=3").mkdir()
    monkeypatch.chdir(tmp_path)
    for path in ("lr=3", f"{tmp_path}/lr=3", "/no/such/lr=3", "./lr=4"):
        assert named(read(path)) == [(None, path)]
    assert named(read("model=lr=3")) == [("model", "lr=3")]


def test_a_flag_without_a_name_applies_to_all_models() -> None:
    settings = read("--model", "a=x", "--model", "b=y", "--threads", "2", "--port", "9000")
    assert [(each.threads, each.port) for each in settings.of_models()] == [(2, 9000)] * 2


def test_a_file_has_settings_of_each_model_which_win_over_those_of_all(tmp_path: Path) -> None:
    path = config_file(
        tmp_path,
        "port: 9000\nthreads: 4\nmodels:\n  chat:\n    model: org/chat\n    dtype: bfloat16\n    max_model_len: 64\n"
        "    lora: [tuned=/tuned]\n  org/vectors: /models/v\n  ranks: {model: r, threads: 1, quantize: int8}\n",
    )
    settings = read("--config", path, "--dtype", "float32")
    chat, vectors, ranks = settings.of_models()
    assert named(settings) == [("chat", "org/chat"), ("org/vectors", "/models/v"), ("ranks", "r")]
    assert (chat.dtype, chat.max_model_len, chat.threads, chat.port) == ("bfloat16", 64, 4, 9000)
    assert chat.lora == (("tuned", "/tuned"),)
    assert (vectors.dtype, vectors.max_model_len, vectors.threads, vectors.lora) == ("float32", None, 4, ())
    assert (ranks.dtype, ranks.quantize, ranks.threads) == ("float32", "int8", 1)


def test_models_of_a_flag_or_a_variable_win_over_those_of_a_file(tmp_path: Path) -> None:
    path = config_file(tmp_path, "models:\n  a: x\n")
    assert named(read("--config", path)) == [("a", "x")]
    assert named(read("--config", path, "b=y")) == [("b", "y")]
    assert named(read("--config", path, LIGHTWELL_MODEL="c=z")) == [("c", "z")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: a", "models: names of models, each with its settings, are accepted"),
        ("models: [a, b]", "models: names of models, each with its settings, are accepted"),
        ("models: {}", "models: names of models, each with its settings, are accepted"),
        ("model: a\nmodels: {b: c}", "model and models are both set; one of them is accepted"),
        ("models: {a: }", "models.a: '' is not a model; a folder, a file or a hub id is accepted"),
        ("models: {a: {threads: 1}}", "models.a: None is not a model; a folder, a file or a hub id is accepted"),
        ("models: {a: [x]}", r"models.a: \['x'\] is not a model"),
        ("models: {'': x}", "models: '' is not a valid name"),
        ('models: {"a\\nb": x}', r"models: 'a\\nb' is not a valid name"),
        ("models: {a: {model: x, thread: 1}}", "models.a: 'thread' is no setting of one model; did you mean 'threads'"),
        ("models: {a: {model: x, port: 1}}", "models.a: 'port' is no setting of one model"),
        ("models: {a: {model: x, threads: two}}", "models.a.threads: 'two' is not usable; an integer from 1 "),
        ("models: {a: {model: x, threads: [1, 2]}}", r"models.a.threads: \['1', '2'\] is a list; one value is"),
        (
            "models: {a: {model: x, max-model-len: {b: 1}}}",
            "models.a: max-model-len: text, a number or a list of these",
        ),
    ],
)
def test_wrong_models_of_a_file_are_named(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=rf"lightwell\.yaml.*{message}") as caught:
        read("--config", config_file(tmp_path, text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--model", "a=x", "--model", "a=y"], "--model: two models have the name 'a'; each name is accepted once"),
        (["--model", "x", "--model", "y", "--served-model-name", "n"], "--served-model-name is accepted with only one"),
        (["--model", "a=x", "--served-model-name", "n"], "--served-model-name is accepted with only one --model"),
        (["--models-dir", "d", "--served-model-name", "n"], "--served-model-name is accepted with only one --model"),
        (["--models-dir", "d", "--lora", "a=f"], "--lora needs --model"),
        (["--max-loaded-models", "0"], "--max-loaded-models: '0' is not usable; an integer from 1 to 1024"),
        (["--model", ""], "--model: .* is not usable; text that is not empty is accepted"),
    ],
)
def test_settings_of_several_models_that_contradict_each_other_are_refused(argv: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read(*argv).of_models()


def test_the_settings_of_one_model_are_checked_together(tmp_path: Path) -> None:
    path = config_file(tmp_path, "models: {a: {model: x, batch-invariant: true, no-batch-invariant: true}}")
    with pytest.raises(SettingsError, match="--batch-invariant and --no-batch-invariant contradict each other"):
        read("--config", path).of_models()


def test_one_name_is_given_to_a_model_by_either_flag() -> None:
    assert named(read("x", "--served-model-name", "n")) == [("n", "x")]
    assert named(read("n=x", "--served-model-name", "n")) == [("n", "x")]
    assert named(read("--served-model-name", "n")) == [("n", None)]


DOCUMENT = (ROOT / "docs" / "several-models.md").read_text(encoding="utf-8")


def test_the_commands_of_the_document_are_accepted() -> None:
    first, second = (
        read(*shlex.split(line)[2:]) for line in re.findall(r"^lightwell serve .*", DOCUMENT, re.MULTILINE)
    )
    assert named(first) == [("chat", "smollm2"), ("embed", "org/embedder"), ("rerank", "/models/cross-encoder")]
    assert (named(second), second.models_dir, second.max_loaded_models) == ([], "/models", 2)


def test_the_file_of_the_document_is_accepted(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    settings = read("--config", config_file(tmp_path, text))
    assert [(each.served_model_name, each.threads, each.dtype) for each in settings.of_models()] == [
        ("chat", 4, "auto"), ("embed", 4, "auto"), ("rerank", 1, "float32"),
    ]  # fmt: skip
    assert settings.port == 9000
