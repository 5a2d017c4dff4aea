"""config.json in its spellings -> ModelConfig; unsupported options are refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightwell.model.checkpoint.folder import PACKAGED, ModelLoadError
from lightwell.model.checkpoint.registry import FAMILIES, read_config
from lightwell.model.checkpoint.resolve import name_of, resolve
from lightwell.model.config import ModelConfig

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
GPT2: dict[str, Any] = {"architectures": ["GPT2LMHeadModel"], "n_embd": 48, "n_layer": 2, "n_head": 4}


def read(folder: Path, values: dict[str, Any], generation: dict[str, Any] | None = None) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return read_config(folder)


def test_a_gemma_3_without_a_head_sees_both_ways(tmp_path: Path) -> None:
    values = {**LLAMA, "architectures": ["Gemma3TextModel"], "num_hidden_layers": 6, "sliding_window": 512}
    config = read(tmp_path, {**values, "use_bidirectional_attention": True})
    assert (config.kind, config.causal, config.has_head) == ("encoder", False, False)
    assert config.sliding_windows == (257,) * 5 + (None,)
    for told in ({}, {"use_bidirectional_attention": False}):
        with pytest.raises(ModelLoadError, match=r"attention is (None|False); only True is supported"):
            read(tmp_path, {**values, **told})


def test_a_nomic_bert_is_read_in_both_spellings(tmp_path: Path) -> None:
    first = {
        "architectures": ["NomicBertModel"],
        "vocab_size": 60,
        "n_embd": 48,
        "n_layer": 3,
        "n_head": 6,
        "n_inner": 80,
        "n_positions": 512,
        "layer_norm_epsilon": 1e-6,
        "rotary_emb_base": 500,
        "activation_function": "swiglu",
        "prenorm": False,
        "rotary_scaling_factor": None,
    }
    now = {
        "architectures": ["NomicBertModel"],
        "vocab_size": 60,
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "intermediate_size": 80,
        "max_position_embeddings": 512,
        "layer_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    }
    assert read(tmp_path, first) == read(tmp_path, now)
    stretched = read(tmp_path, {**first, "rotary_scaling_factor": 2, "max_trained_positions": 256})
    assert stretched.max_model_len == 256


def test_end_of_text_ids_come_from_both_files_without_repeats(tmp_path: Path) -> None:
    config = read(tmp_path, {**LLAMA, "eos_token_id": 2}, {"eos_token_id": [5, 2, 7]})
    assert config.eos_token_ids == (5, 2, 7)


def test_a_folder_without_architectures_is_known_by_its_model_type_and_is_of_float32(tmp_path: Path) -> None:
    config = read(tmp_path, {**GPT2, "model_type": "gpt2", "architectures": None})
    assert (config.architecture, config.dtype) == ("GPT2LMHeadModel", "float32")


@pytest.mark.parametrize(
    ("name", "fields", "near", "others"),
    [
        ("MambaForCausalLM", {"state_size": 16}, "Lfm2ForCausalLM", "Marian"),
        ("FalconH1ForCausalLM", {"mamba_d_state": 16}, "Lfm2ForCausalLM", "Model"),
        ("Qwen4MoeForCausalLM", {"num_local_experts": 8}, "Qwen3MoeForCausalLM", "Lfm2"),
        ("Qwen4ForCausalLM", {}, "Qwen3ForCausalLM", "Moe"),
        ("PegasusForConditionalGeneration", {"is_encoder_decoder": True}, "BartForConditionalGeneration", "Gemma3"),
        ("LlavaForConditionalGeneration", {"text_config": {}}, "Gemma4ForConditionalGeneration", "Bart"),
        ("ElectraForMaskedLM", {}, "BertForMaskedLM", "CausalLM"),
    ],
)
def test_the_nearest_to_an_unknown_architecture_are_of_its_kind(
    tmp_path: Path, name: str, fields: dict[str, Any], near: str, others: str
) -> None:
    with pytest.raises(ModelLoadError, match="similar names are ") as caught:
        read(tmp_path, {"architectures": [name], **fields})
    found = str(caught.value).partition("similar names are ")[2].partition(";")[0].split(", ")
    assert found[0] == near
    assert not [each for each in found if others in each]


def test_an_unknown_architecture_lists_the_supported_ones(tmp_path: Path) -> None:
    with pytest.raises(
        ModelLoadError,
        match=r"MambaForCausalLM is not supported; similar names are Lfm2.*; supported are LlamaForCausalLM, Mis",
    ):
        read(tmp_path, {"architectures": ["MambaForCausalLM"]})
    with pytest.raises(ModelLoadError, match="model_type 'mamba' is not supported"):
        read(tmp_path, {"model_type": "mamba"})
    with pytest.raises(ModelLoadError, match="architectures is 5; a list of names is expected"):
        read(tmp_path, {"architectures": 5})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden_size": None}, "hidden_size is None; a positive integer"),
        ({"hidden_size": "48"}, "hidden_size is '48'; an integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; a positive integer"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; at most 10000 is"),
        ({"max_position_embeddings": 10**15}, "max_position_embeddings is 1000000000000000; at most 16777216 is"),
        ({"vocab_size": 2**31}, "vocab_size is 2147483648; at most 2147483647 is"),
        ({"num_hidden_layers": 6.0}, r"num_hidden_layers is 6\.0; an integer"),
        ({"num_key_value_heads": 3}, r"num_key_value_heads is 3; a divisor of num_attention_heads \(4\)"),
        ({"head_dim": 15}, "head_dim is 15; rotary embedding needs an even head_dim"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'; supported are silu"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1; a positive number"),
        ({"rope_theta": 10**400}, r"rope_theta is 10+; at most 1e\+30 is accepted"),
        ({"rope_theta": float("inf")}, r"rope_theta is inf; at most 1e\+30 is accepted"),
        ({"attention_bias": "yes"}, "attention_bias is 'yes'; true or false"),
        ({"dtype": "int8"}, "dtype is 'int8'; supported are float32"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'; a token id"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: quant_method is None; supported are awq"),
        ({"rope_scaling": {"type": "spiral"}}, "type is 'spiral'; supported are default, linear"),
        ({"rope_scaling": {"type": "linear"}}, "factor is None; rope type 'linear' needs"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}},
            r"short_factor is \[1.0\]; a list of 6 numbers",
        ),
        ({"rope_scaling": 3}, "rope_scaling is 3; an object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; only 1.0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_value_that_makes_no_sense_is_named_with_what_is_accepted(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelLoadError, match=named) as caught:
        read(tmp_path, {**LLAMA, **change})
    assert "\n" not in str(caught.value)


def test_broken_json_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelLoadError, match=r"config\.json: cannot be read as JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ModelLoadError, match="contains a list; a JSON object is expected"):
        read_config(tmp_path)


def test_names_of_families_and_architectures_are_told_apart() -> None:
    for names in ([each.name for each in FAMILIES], [name for each in FAMILIES for name in each.architectures]):
        assert len(set(names)) == len(names)


def test_a_folder_is_resolved_to_itself_and_fables_to_the_built_in_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert resolve(str(tmp_path)) == tmp_path
    assert resolve("fables") == PACKAGED


def test_without_a_name_the_model_that_answers_is_served_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "lightwell_smollm2"
    package.mkdir()
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"no weights")
    for name in (None, "smollm2"):
        with pytest.raises(ModelLoadError, match=r"SmolLM2-135M-Instruct.Q4_1.gguf: the file begins with"):
            resolve(name)
    assert name_of(None, PACKAGED) == "smollm2"


def test_a_folder_of_several_gguf_files_asks_which(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"no weights")
    with pytest.raises(ModelLoadError, match=r"select one with --gguf-file: a.gguf, b.gguf"):
        resolve(str(tmp_path))
    with pytest.raises(ModelLoadError, match=r"b.gguf: the file begins with"):
        resolve(str(tmp_path), "b.gguf")
    with pytest.raises(ModelLoadError, match=r"'c.gguf'.*it contains a.gguf, b.gguf"):
        resolve(str(tmp_path), "c.gguf")


def test_a_name_that_leads_nowhere_is_named_in_one_line(tmp_path: Path) -> None:
    for name, reason in (
        (str(tmp_path / "gone"), "no such folder"),
        (str(tmp_path), "contains no config.json"),
        (__file__, "is a file"),
        ("", "no such folder|contains no config.json"),
        ("a/b/c", "no such folder"),
    ):
        with pytest.raises(ModelLoadError, match=reason) as caught:
            resolve(name)
        assert "\n" not in str(caught.value)


def test_without_the_hub_an_earlier_download_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    kept = tmp_path / "models--somebody--something"
    snapshot = kept / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("0" * 40, encoding="utf-8")
    (snapshot / "config.json").write_text("{}", encoding="utf-8")
    assert resolve("somebody/something") == snapshot


ODD: tuple[Any, ...] = (None, True, -1, 0, 2**31, 2**63, 1e308, "", "x", [], [[]], ["x"], {}, {"x": []}, [{}])


@pytest.mark.parametrize(
    "values",
    [
        {**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "torch_dtype": "float16"},
        {**LLAMA, "architectures": ["Phi3ForCausalLM"], "rope_scaling": {"type": "default"}},
        {
            **LLAMA,
            "architectures": ["GraniteMoeHybridForCausalLM"],
            "num_local_experts": 0,
            "layer_types": ["attention"],
        },
    ],
    ids=["llama", "phi3", "granite"],
)
def test_a_field_of_any_type_is_read_or_refused_in_one_line(values: dict[str, Any], tmp_path: Path) -> None:
    nested = values.get("rope_scaling", {})
    changed = [{**values, name: odd} for name in values for odd in ODD]
    changed += [{**values, "rope_scaling": {**nested, name: odd}} for name in nested for odd in ODD]
    errors = list[str]()
    for one in changed:
        try:
            read(tmp_path, one)
        except ModelLoadError as error:
            errors.append(str(error))
    assert len(errors) > len(changed) / 2
    assert not [error for error in errors if "\n" in error]
