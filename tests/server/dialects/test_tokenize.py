"""POST /tokenize and POST /detokenize."""

from tests.server.dialects.routes import refuses
from tests.server.serving import END_OF_TEXT, Site


async def test_tokenize_has_vllms_shape(plain: Site) -> None:
    answer = (await plain.post("/tokenize", {"prompt": "aé", "return_token_strs": True})).json()
    assert answer == {
        "count": 3,
        "max_model_len": 64,
        "tokens": [97, 195, 169],
        "token_strs": ["a", "\ufffd", "\ufffd"],
    }
    answer = (await plain.post("/tokenize", {"prompt": "aéb", "return_offsets": True})).json()
    assert answer["offsets"] == [[0, 1], [1, 2], [1, 2], [2, 3]]


async def test_a_conversation_is_tokenised_as_the_template_writes_it(plain: Site) -> None:
    answer = (await plain.post("/tokenize", {"messages": [{"role": "user", "content": "x"}]})).json()
    assert bytes(answer["tokens"]) == b"<user>x<A>"


async def test_detokenize_gives_the_text_back_with_special_tokens_unless_skipped(plain: Site) -> None:
    assert (await plain.post("/detokenize", {"tokens": [97, 195, 169]})).json() == {"prompt": "aé"}
    assert (await plain.post("/detokenize", {"tokens": []})).json() == {"prompt": ""}
    ids = [97, END_OF_TEXT]
    assert (await plain.post("/detokenize", {"tokens": ids})).json() == {"prompt": "a<|end|>"}
    body = {"tokens": ids, "skip_special_tokens": True}
    assert (await plain.post("/detokenize", body)).json() == {"prompt": "a"}
    await refuses(plain, "/detokenize", {"tokens": [97, 257]}, "no token 257; accepted are 0 to 256")
