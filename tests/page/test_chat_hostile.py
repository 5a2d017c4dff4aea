"""Hostile answers and imports in Chat: no script runs, no request leaves the origin, wrong files change nothing."""

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.page.chats import Scripted, answers, open_chat, send, stream_of
from tests.support.processes import Server

RUN = "window.hit=1"
ADDRESSES = (
    f"javascript:{RUN}", f"JaVaScRiPt:{RUN}", f"java\tscript:{RUN}", f"java\nscript:{RUN}", f" javascript:{RUN}",
    f"\x01javascript:{RUN}", f"javascript&colon;{RUN}", f"&#106;avascript:{RUN}", f"&#x6A;avascript:{RUN}",
    f"javascript&#58;{RUN}", f"javascript://example.com/%0a{RUN}", f"data:text/html,<script>{RUN}</script>",
    "data:text/html;base64,PHNjcmlwdD53aW5kb3cuaGl0PTE8L3NjcmlwdD4=", f"vbscript:{RUN}", "file:///etc/passwd",
    "blob:http://evil.invalid/1", "//evil.invalid/x", "/v1/models", "?embed=1", f"view-source:javascript:{RUN}",
    f"feed:javascript:{RUN}", "http:evil", "about:blank", f"jar:javascript:{RUN}",
)  # fmt: skip
LINKS = (
    "[x]({0})",
    "[x](<{0}>)",
    "![x]({0})",
    "<{0}>",
    "[x][r]\n\n[r]: {0}",
    "[![x]({0})]({0})",
    "| a |\n|-|\n| [x]({0}) |",
)
ELEMENTS = (
    "<script>{0}</script>", "<script src=https://evil.invalid/x.js></script>", "<img src=x onerror={0}>",
    "<img src=https://evil.invalid/x.png>", "<svg onload={0}>", "<svg><script>{0}</script></svg>", "<body onload={0}>",
    "<iframe src=https://evil.invalid></iframe>", "<iframe srcdoc='<script>parent.hit=1</script>'></iframe>",
    "<object data=https://evil.invalid/x>", "<embed src=https://evil.invalid/x>", "<video src=x onerror={0}>",
    "<audio src=https://evil.invalid/a>", "<link rel=stylesheet href=https://evil.invalid/x.css>",
    "<style>@import 'https://evil.invalid/x.css'</style>", "<meta http-equiv=refresh content='0;url=//evil.invalid'>",
    "<base href=https://evil.invalid/>", "<form action=https://evil.invalid><input autofocus onfocus={0}></form>",
    "<a href='javascript:{0}'>x</a>", "<math><maction xlink:href='javascript:{0}'>x</maction></math>",
    "<details open ontoggle={0}>", "<marquee onstart={0}>", "<div style='background:url(https://evil.invalid/x)'>x</div>",
    "<template><script>{0}</script></template>", "<isindex onfocus={0}>", "<input onfocus={0} autofocus>",
    "<table background=https://evil.invalid/x>", "<noscript><p title='</noscript><img src=x onerror={0}>'>",
    "<!--><img src=x onerror={0}>-->", "<![CDATA[<img src=x onerror={0}>]]>", "<x onclick={0}>x</x>",
)  # fmt: skip
PLACES = ("{0}", "> {0}", "- {0}", "**{0}**", "`{0}`", "```html\n{0}\n```", "$$\n{0}\n$$", "# {0}", "$\\text{{{0}}}$")
FORMULAS = (
    "$\\href{{javascript:{0}}}{{x}}$", "$\\url{{javascript:{0}}}$", "$\\includegraphics{{https://evil.invalid/x.png}}$",
    "$\\htmlClass{{a}}{{x}}$", "$\\style{{background:url(https://evil.invalid)}}{{x}}$", "$\\def\\x{{\\x\\x}}\\x$",
    "$\\unicode{{60}}script$", "$\\begin{{{0}}}x\\end{{{0}}}$", "$" + "{{" * 400 + "$", "$$" + "\\sqrt" * 900 + "$$",
)  # fmt: skip
DEEP = (
    "> " * 3000 + "x",
    "[" * 3000 + "x",
    "- " * 500 + "x",
    "*" * 3000,
    "`" * 3000,
    "$" * 3000,
    "\\(" * 1500,
    "|" * 3000,
)


def cases() -> Iterator[str]:
    yield from (form.format(address) for form, address in product(LINKS, ADDRESSES))
    yield from (place.format(element.format(RUN)) for place, element in product(PLACES, ELEMENTS))
    yield from (formula.format(RUN) for formula in FORMULAS)
    yield from DEEP


CASES = [*cases()]
FOUND = """() => {
  const inside = document.querySelectorAll(".chat-column *, .chat-side *");
  const allowed = new Set(`article p div span a strong em del code pre h3 ul ol li blockquote table thead tbody tr th td
    hr br figure figcaption button svg path details summary i math mrow mi mo mn mtext msup msub msubsup mfrac msqrt
    mroot    mover munder
    munderover mspace mtable mtr mtd b small label input form aside`.split(/\\s+/));
  const wrong = [];
  for (const element of inside) {
    const name = element.localName;
    if (!allowed.has(name)) wrong.push(name);
    for (const { name: attribute, value } of element.attributes) {
      if (/^on|^src|^xlink:/.test(attribute)) wrong.push(attribute);
      if (attribute === "href" && !/^https?:\\/\\/\\w/.test(value)) wrong.push(`href ${value}`);
      if (attribute === "href" && !/noopener/.test(element.rel)) wrong.push("rel");
      if (attribute === "style" && /url/.test(value)) wrong.push(value);
    }
  }
  return [...wrong, ...(window.hit ? ["a script ran"] : [])];
}"""


def test_there_are_enough_cases() -> None:
    assert len(set(CASES)) >= 400


@pytest.mark.parametrize("part", range(2))
def test_no_answer_runs_a_script_or_loads_anything(page: Page, server: Server, part: int) -> None:
    """Each case is a turn of its own in an imported conversation, and some are also streamed answers. The page's
    policy is not relied on: nothing that it would block may be made.
    """
    own = CASES[part::2]
    open_chat(page, server)
    turns = []
    for parent, case in zip(range(0, 2 * len(own), 2), own, strict=True):
        files = [{"name": case[:900], "text": case}]
        turns.append({"id": parent + 1, "parent": parent, "role": "user", "text": case, "files": files})
        more = {"reasoning": case, "model": case[:900]}
        turns.append({"id": parent + 2, "parent": parent + 1, "role": "assistant", "text": case, **more})
    chat = {"id": "../evil", "title": own[0][:900], "system": own[0], "turns": turns, "settings": {}, "updated": 1}
    imported(page, {"format": "lightwell conversations", "version": 1, "conversations": [chat]})
    expect(page.locator(".turn")).to_have_count(len(turns))
    expect(page.locator(".markdown").first).to_be_visible()
    assert page.evaluate(FOUND) == []
    page.get_by_role("button", name="New chat").click()
    streamed = own[::17]
    Scripted(page, *map(stream_of, streamed))
    for case in streamed:
        send(page, case)
    expect(answers(page)).to_have_count(len(streamed))
    assert page.evaluate(FOUND) == []
    for link in page.locator(".markdown a").all()[:3]:
        assert (link.get_attribute("target"), "noopener" in str(link.get_attribute("rel"))) == ("_blank", True)


def imported(page: Page, content: Any) -> None:
    file = {"name": "chats.json", "mimeType": "application/json", "buffer": json.dumps(content).encode()}
    page.get_by_label("File to import").set_input_files(file)  # type: ignore[arg-type]


TURN = {"id": 1, "parent": 0, "role": "user", "text": "Hello?"}


def chat_with(**changes: Any) -> dict[str, Any]:
    return {"id": "a", "title": "", "system": "", "settings": {}, "updated": 1, "turns": [TURN], **changes}


WRONG = [
    (7, "its format is not"),
    ({"format": "other"}, "its format is not"),
    ([{"turns": 3}], "conversations[0].turns is not a list"),
    ([{**TURN}], "conversations[0].turns is not a list"),
    ([chat_with(id=7)], "conversations[0].id is not a text"),
    ([chat_with(title=["<b>"])], "conversations[0].title is not a text"),
    ([chat_with(updated="now")], "conversations[0].updated is not a number"),
    ([chat_with(settings=[])], "conversations[0].settings is not an object"),
    ([chat_with(settings={"temperature": {}})], "settings.temperature is not a number"),
    ([chat_with(settings={"temperature": "hot"})], "settings.temperature is not a number"),
    ([chat_with(settings={"stop": 7})], "settings.stop is not a text"),
    ([chat_with(settings={"schema": 7})], "settings.schema is not a text"),
    ([chat_with(turns=[{**TURN, "role": "root"}])], "turns[0].role is none of user, assistant, tool"),
    ([chat_with(turns=[{**TURN, "parent": 1}])], "turns[0].parent is no earlier turn"),
    ([chat_with(turns=[TURN, TURN])], "turns[1].id is not unique"),
    ([chat_with(turns=[{**TURN, "id": -1}])], "turns[0].id is not a whole number"),
    ([chat_with(turns=[{**TURN, "text": None}])], "turns[0].text is not a text"),
    ([chat_with(turns=[{**TURN, "ids": ["1"]}])], "turns[0].ids[0] is not a whole number"),
    ([chat_with(turns=[{**TURN, "files": [{"name": "a"}]}])], "turns[0].files[0].text is not a text"),
    ([chat_with(turns=[{**TURN, "calls": {}}])], "turns[0].calls is not a list"),
    ([chat_with(turns=[TURN] * 20_001)], "has 20001 entries; at most 20000"),
    ([chat_with(turns=[{**TURN, "text": "x" * 4_000_001}])], "has 4000001 characters; at most 4000000"),
    ([chat_with()] * 2001, "has 2001 entries; at most 2000"),
]


def test_wrong_files_are_refused_with_the_field_and_change_nothing(page: Page, server: Server, tmp_path: Path) -> None:
    open_chat(page, server)
    for content, said in WRONG:
        is_list = isinstance(content, list)
        imported(page, {"format": "lightwell conversations", "conversations": content} if is_list else content)
        expect(page.locator(".chat-list .problem")).to_contain_text(said)
        assert page.evaluate("localStorage.length") == 0
    page.get_by_label("File to import").set_input_files({"name": "a.json", "mimeType": "", "buffer": b"{"})
    expect(page.locator(".chat-list .problem")).to_contain_text("a.json is not JSON.")
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(32_000_001)
    page.get_by_label("File to import").set_input_files(large)
    expect(page.locator(".chat-list .problem")).to_contain_text("at most 32000000 are accepted")


@pytest.mark.parametrize("changes", [{"end": {"reason": "tool_calls"}}, {"pieces": [["Yes", -1]], "model": "fables"}])
def test_an_imported_turn_without_the_fields_that_belong_together_is_shown(
    page: Page, server: Server, changes: dict[str, Any]
) -> None:
    open_chat(page, server)
    turns = [TURN, {"id": 2, "parent": 1, "role": "assistant", "text": "Yes", **changes}]
    imported(page, {"format": "lightwell conversations", "conversations": [chat_with(turns=turns)]})
    expect(answers(page)).to_have_text(re.compile("Yes"))
    answers(page).get_by_role("button", name="X-ray").click()
    expect(answers(page).locator(".prose button").first).to_be_visible()
    expect(page.locator(".problem")).to_have_count(0)


def test_names_of_the_language_in_a_file_are_only_names(page: Page, server: Server) -> None:
    open_chat(page, server)
    text = json.dumps([chat_with(id="__proto__", chosen={"0": 5, "__proto__": 1})]).replace(
        '"settings": {}', '"settings": {"__proto__": 1, "constructor": "x"}'
    )
    imported(page, {"format": "lightwell conversations", "conversations": json.loads(text)})
    expect(page.locator(".bubble")).to_have_text("Hello?")
    assert page.evaluate("({}).polluted === undefined && Object.keys(localStorage).length === 1")
    page.reload()
    expect(page.locator(".bubble")).to_have_text("Hello?")


def test_a_damaged_entry_of_the_storage_is_left_out(page: Page, server: Server) -> None:
    open_chat(page, server)
    Scripted(page, stream_of("Paris."))
    send(page, "France?")
    page.evaluate("""() => {
      const name = Object.keys(localStorage)[0];
      localStorage.setItem(`${name}x`, "{");
      localStorage.setItem(`${name}y`, JSON.stringify({ turns: [{ role: "root" }] }));
    }""")
    page.reload()
    expect(page.locator(".turn.of-user")).to_have_text("France?")
    expect(page.get_by_role("list", name="Conversations").locator("li")).to_have_count(1)
