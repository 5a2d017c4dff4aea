"""Settings: their sources, the rejected values and the error messages."""

import argparse
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightwell.model.kernels.library import LEVEL_VARIABLE, LIBRARY_VARIABLE
from lightwell.server.config.auth.keys import hash_of
from lightwell.server.config.command_line import add_arguments, deprecations, from_arguments, unknown_variables
from lightwell.server.config.setting_names import flag_name
from lightwell.server.config.setting_types import format_bytes, parse_bytes
from lightwell.server.config.settings import Settings, SettingsError, setting_names


def read(*argv: str, **environ: str) -> Settings:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return from_arguments(parser.parse_args(argv), environ)


def test_a_flag_wins_over_its_variable_and_the_variable_over_the_default() -> None:
    assert read(LIGHTWELL_PORT="9000").port == 9000
    assert read("--port", "9001", LIGHTWELL_PORT="9000").port == 9001
    assert read(LIGHTWELL_PORT="", LIGHTWELL_API_KEY="") == read() == Settings()


def test_the_model_is_an_argument_a_flag_or_a_variable() -> None:
    given = read("some/model"), read("--model", "some/model"), read(LIGHTWELL_MODEL="some/model")
    assert [settings.source for settings in given] == ["some/model"] * 3


def test_two_models_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"'a'.*'b'"):
        read("a", "--model", "b")


def test_several_keys_come_from_repeated_flags_or_between_commas() -> None:
    assert read("--api-key", "a", "--api-key", "b").api_key == (hash_of("a"), hash_of("b"))
    assert read(LIGHTWELL_API_KEY="a, b").api_key == (hash_of("a"), hash_of("b"))


def test_a_key_that_cannot_be_used_is_not_repeated() -> None:
    with pytest.raises(SettingsError, match="--api-key: the value is not usable") as raised:
        read("--api-key", "sesame,,open")
    assert "sesame" not in str(raised.value)


def test_switches_are_off_until_named() -> None:
    assert not read().no_prefix_caching
    assert read("--no-prefix-caching").no_prefix_caching
    assert read(LIGHTWELL_NO_PREFIX_CACHING="true").no_prefix_caching
    assert not read(LIGHTWELL_NO_PREFIX_CACHING="0").no_prefix_caching


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--port", "70000"], ["--port", "'70000'", "0 to 65535"]),
        (["--port", "http"], ["--port", "'http'", "integer"]),
        (["--dtype", "int8"], ["--dtype", "'int8'", "bfloat16"]),
        (["--quantize", "int2"], ["--quantize: 'int2' is not usable; accepted are none, int8, int4, fp8"]),
        (["--kv-cache-memory", "lots"], ["--kv-cache-memory", "'lots'", "2GB"]),
        (["--gpu-memory-utilization", "90"], ["--gpu-memory-utilization", "'90'", "above 0 and at most 1"]),
        (["--gpu-memory-utilization", "0"], ["--gpu-memory-utilization", "'0'", "above 0 and at most 1"]),
        (["--request-timeout", "-1"], ["--request-timeout", "'-1'", "seconds"]),
        (["--request-timeout", "nan"], ["--request-timeout", "'nan'", "seconds"]),
        (["--worker-timeout", "0"], ["--worker-timeout", "above 0"]),
        (["--max-num-batched-tokens", "8"], ["--max-num-batched-tokens 8", "--max-num-seqs 64"]),
        (["--root-path", "proxy/"], ["--root-path", "'proxy/'", "/lightwell"]),
        (["--api-key", "a,,b"], ["--api-key", "empty"]),
        (["--otlp-endpoint", "x..y"], ["--otlp-endpoint", "'x..y'", "http://localhost:4318"]),
        (["--otlp-endpoint", "http://x..y"], ["--otlp-endpoint", "'http://x..y'"]),
        (["--otlp-endpoint", "http://x:70000"], ["--otlp-endpoint", "'http://x:70000'"]),
        (["--cors-origin", "https://x..y"], ["--cors-origin", "https://x..y", "http://localhost:3000"]),
        (["--cors-origin", "https://u@x"], ["--cors-origin", "https://u@x", "http://localhost:3000"]),
        (["--cors-origin", "https://x/page"], ["--cors-origin", "https://x/page", "http://localhost:3000"]),
        (["--served-model-name", " "], ["--served-model-name", "' '", "not empty"]),
        (["--kernels", "numba"], ["--kernels", "'numba'", "auto, native, triton, torch"]),
        (["--kernel-arithmetic", "bf16"], ["--kernel-arithmetic", "'bf16'", "auto, float32, bf16-dot"]),
        (["--no-compile", "--kernels", "native"], ["--no-compile", "--kernels native", "set one"]),
        (["--tensor-parallel", "2", "--devices", "0,"], ["--tensor-parallel 2", "--devices 0,;", "--devices 1 "]),
    ],
)
def test_a_bad_value_is_named_with_its_flag_and_what_is_accepted(argv: list[str], parts: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        read(*argv)
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    ["http://otel_collector:4318", "https://[::1]:4318/otlp", "HTTP://Localhost", "https://u:p%40@[::1]:4318/a@b"],
)
def test_addresses_of_collectors_are_accepted_as_they_are(address: str) -> None:
    assert read("--otlp-endpoint", address).otlp_endpoint == address


def test_a_bad_variable_is_named() -> None:
    with pytest.raises(SettingsError, match="LIGHTWELL_MAX_NUM_SEQS: 'many'"):
        read(LIGHTWELL_MAX_NUM_SEQS="many")


def test_the_variables_of_a_kubernetes_service_named_lightwell_are_no_settings() -> None:
    environ = {"LIGHTWELL_PORT": "tcp://10.0.0.1:8000", "LIGHTWELL_SERVICE_HOST": "10.0.0.1"}
    assert read(**environ).port == 8000
    assert unknown_variables(environ) == []


def config_file(folder: Path, text: str) -> str:
    (folder / "lightwell.yaml").write_text(text, encoding="utf-8")
    return str(folder / "lightwell.yaml")


def test_a_file_holds_settings_below_variables_and_flags(tmp_path: Path) -> None:
    path = config_file(
        tmp_path,
        "model: some/model\nport: 9000\nhost: 0.0.0.0\nmax_num_seqs: 8\nkv-cache-memory: 2GiB\ncuda-graphs: on\n"
        "no-prefix-caching: true\nbatch-invariant: false\napi-key: [a, b]\nshutdown-grace: 1.5\n",
    )
    settings = read("--config", path, "--port", "9002", LIGHTWELL_HOST="::1")
    assert (settings.port, settings.host, settings.config) == (9002, "::1", path)
    assert (settings.source, settings.max_num_seqs, settings.kv_cache_memory) == ("some/model", 8, 2 << 30)
    assert (settings.no_prefix_caching, settings.batch_invariant, settings.cuda_graphs) == (True, False, "on")
    assert (settings.api_key, settings.shutdown_grace) == ((hash_of("a"), hash_of("b")), 1.5)
    assert read(LIGHTWELL_CONFIG=path).port == 9000
    assert read("--config", config_file(tmp_path, "# nothing\n")).port == 8000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot: 8000", "'prot' is no setting; did you mean 'port'"),
        ("port: http", "port: 'http' is not usable; an integer from 0 to 65535 is accepted"),
        ("max_num_seqs: 0", "max-num-seqs: '0' is not usable; an integer from 1 "),
        ("port: [1, 2]", r"port: \['1', '2'\] is a list; one value is accepted"),
        ("port:\n  number: 1", "port: text, a number or a list of these is accepted"),
        ("config: other.yaml", "'config' is no setting"),
        ("- port", "lines such as 'port: 8000' are accepted"),
        ("port: [", "is not valid YAML: expected the node content"),
        ("api-key: @sesame", "is not valid YAML: .* in line 1"),
        ("api-key: 'sesame,,open'", "api-key: the value is not usable"),
    ],
)
def test_a_file_is_checked_like_flags(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=rf"lightwell\.yaml.*{message}") as caught:
        read("--config", config_file(tmp_path, text))
    assert "\n" not in str(caught.value)
    assert "sesame" not in str(caught.value)


def test_a_file_that_is_missing_is_named() -> None:
    with pytest.raises(SettingsError, match=r"--config 'no\.yaml': the file cannot be read \(No such file"):
        read("--config", "no.yaml")


def test_a_misspelt_variable_is_found() -> None:
    assert unknown_variables({"LIGHTWELL_PROT": "1", "LIGHTWELL_PORT": "1", "OTHER": "1"}) == ["LIGHTWELL_PROT"]


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("2KiB", 2048), ("2kb", 2000), ("1.5GiB", 3 << 29), ("2G", 2_000_000_000), ("3 MiB", 3 << 20)],
)
def test_sizes_are_read_in_powers_of_1000_and_1024(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@given(st.integers(min_value=0, max_value=1 << 50))
def test_a_size_written_out_is_read_back(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == size


def test_the_help_holds_every_setting() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    text = " ".join(parser.format_help().split())
    for name in setting_names():
        assert flag_name(name) in text
        assert f"LIGHTWELL_{name.upper()}" in text
    assert "LIGHTWELL_MAX_NUM_SEQS; default: 64" in text


def test_the_help_begins_with_the_ten_common_options() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    *_, common, model = re.split(r"^(?=\S.*:$)", parser.format_help(), flags=re.MULTILINE)[:5]
    assert common.startswith("common options:\n")
    assert len(re.findall(r"^  --", common, re.MULTILINE)) == 10
    assert model.startswith("model:\n")


@pytest.mark.parametrize(
    ("argv", "environ", "fields"),
    [
        ([], {}, {"enable_prefix_caching": True, "quantize": "none", "activations": "dtype", "cuda_graphs": "on"}),
        ([], {}, {"kernels": "auto", "kernel_arithmetic": "auto", "batch_invariant": None, "model": Path("folder")}),
        (["--no-prefix-caching", "--threads", "3"], {}, {"enable_prefix_caching": False, "threads": 3}),
        (["--kv-cache-memory", "1MiB"], {}, {"kv_cache_bytes": 1 << 20}),
        (["--gpu-memory-utilization", ".5"], {}, {"gpu_memory_utilization": 0.5}),
        (["--kernels", "native"], {"LIGHTWELL_KERNEL_ARITHMETIC": "bf16-dot"}, {"kernels": "native"}),
        ([], {"LIGHTWELL_KERNEL_ARITHMETIC": "bf16-dot"}, {"kernel_arithmetic": "bf16-dot"}),
        (["--activations", "int8", "--quantize", "fp8"], {}, {"activations": "int8", "quantize": "fp8"}),
        (["--batch-invariant"], {}, {"batch_invariant": True}),
        (["--no-batch-invariant"], {}, {"batch_invariant": False}),
        ([], {"LIGHTWELL_BATCH_INVARIANT": "1"}, {"batch_invariant": True}),
    ],
)
def test_the_engine_gets_its_part(argv: list[str], environ: dict[str, str], fields: dict[str, object]) -> None:
    config = read(*argv, **environ).engine_config(Path("folder"))
    assert {name: getattr(config, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("argv", "environ", "graphs"),
    [
        (["--no-compile"], {}, "on"),
        ([], {"LIGHTWELL_NO_COMPILE": "1"}, "on"),
        (["--no-compile", "--cuda-graphs", "off", "--kernels", "torch"], {}, "off"),
    ],
)
def test_no_compile_stands_for_torch_and_is_said_to_go(argv: list[str], environ: dict[str, str], graphs: str) -> None:
    settings = read(*argv, **environ)
    config = settings.engine_config(Path("folder"))
    assert (config.kernels, config.cuda_graphs) == ("torch", graphs)
    (line,) = deprecations(settings)
    assert all(part in line for part in ("--no-compile", "1.0", "--kernels torch"))
    assert deprecations(read("--kernels", "torch")) == []


@pytest.mark.parametrize(
    ("argv", "environ"),
    [
        (["--max-look-tokens", "48"], {}),
        ([], {"LIGHTWELL_MAX_LOOK_TOKENS": "48"}),
        (["--max-capture-tokens", "48"], {"LIGHTWELL_MAX_LOOK_TOKENS": "48"}),
    ],
)
def test_the_older_name_of_capture_tokens_is_understood_and_is_said_to_go(
    argv: list[str], environ: dict[str, str]
) -> None:
    settings = read(*argv, **environ)
    assert settings.engine_config(Path("folder")).max_capture_tokens == 48
    (line,) = deprecations(settings)
    assert all(part in line for part in ("--max-look-tokens", "1.0", "--max-capture-tokens"))
    assert unknown_variables(environ) == []


def test_the_name_of_capture_tokens_warns_of_nothing_and_does_not_go_with_another_number_by_the_older() -> None:
    settings = read("--max-capture-tokens", "48")
    assert settings.engine_config(Path("folder")).max_capture_tokens == 48
    assert deprecations(settings) == []
    with pytest.raises(SettingsError, match=r"--max-look-tokens 32.*--max-capture-tokens.*48; set one"):
        read("--max-capture-tokens", "48", LIGHTWELL_MAX_LOOK_TOKENS="32")


def test_variables_that_the_kernels_read_are_known() -> None:
    ours = {LEVEL_VARIABLE: "avx2", LIBRARY_VARIABLE: "kernels.so", "LIGHTWELL_KERNEL_LEVELS": "avx2"}
    assert unknown_variables(ours) == ["LIGHTWELL_KERNEL_LEVELS"]


def test_batch_invariance_is_not_asked_for_and_refused_at_once() -> None:
    with pytest.raises(SettingsError, match="--batch-invariant and --no-batch-invariant contradict each other"):
        read("--no-batch-invariant", LIGHTWELL_BATCH_INVARIANT="1")


@pytest.mark.parametrize("flags", [{"speculation": "draft"}, {"draft_model": "smollm2"}])
def test_a_draft_model_and_speculation_draft_need_each_other(flags: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="--speculation draft and --draft-model are only accepted together"):
        Settings.from_sources(flags, {})
