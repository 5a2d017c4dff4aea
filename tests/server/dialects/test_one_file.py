"""The page with one view as one file: every view's code fits, and nothing in it could end the script or fetch more."""

import re
import threading
from typing import Any

import pytest

from lightwell.server.dialects.ops.single_file_page import EMPTY, one_file, views_of
from tests.server import serving
from tests.server.serving import Site
from tests.source_tree import ROOT

PAGE = ROOT / "server" / "web" / "page"

FILES = {path.relative_to(PAGE).as_posix(): path.read_bytes() for path in PAGE.rglob("*.*")}


@pytest.mark.parametrize("view", views_of(FILES))
def test_every_view_fits_into_one_file(view: str) -> None:
    page = one_file(FILES, view)
    made = re.findall(r'^makers\["([^"]+)"\] \?\?= ', page, re.MULTILINE)
    assert f"views/{view}.js" in made
    others = {f"views/{other}.js" for other in views_of(FILES)} - {f"views/{view}.js"}
    assert not others & set(made)
    used = re.findall(r'= use\("([^"]+)"\);', page)
    assert set(used) <= set(made)
    assert page.count("</script>") == 2
    assert page.count(EMPTY) == 1
    assert not re.search(r'\b(?:src|href)="(?!data:)', page.split("<script")[0])


@pytest.mark.parametrize(
    "source",
    [
        "import * as all from './core/api.js';",
        "export default 1;",
        "const end = '</script>';",
        "export let count = 0;",
        "const later = import(name);",
    ],
)
def test_code_of_another_form_is_refused_and_not_left_out(source: str) -> None:
    with pytest.raises(ValueError, match=r"views/lens\.js: .* is in no form"):
        one_file({**FILES, "views/lens.js": source.encode()}, "lens")


async def test_a_file_is_served_for_views_alone_and_does_not_run_at_the_server(plain: Site) -> None:
    answer = await plain.http.get("/web/saved/lens.html")
    assert answer.text == one_file(FILES, "lens")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; frame-ancestors 'none'")
    for name in ("tour", "nowhere"):
        assert (await plain.http.get(f"/web/saved/{name}.html")).status_code == 404
    (digest,) = set(re.findall(r"web/(\w{12})/", (await plain.http.get("/")).text))
    for name in ("lens", "lens.html", "tour.html"):
        assert (await plain.http.get(f"/web/{digest}/saved/{name}")).status_code == 404


async def test_a_file_is_made_once_and_not_by_the_event_loop(plain: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    makers: list[threading.Thread] = []

    def noted(*arguments: Any) -> str:
        makers.append(threading.current_thread())
        return one_file(*arguments)

    monkeypatch.setattr("lightwell.server.dialects.ops.web_assets.one_file", noted)
    serving._assets.cache_clear()  # sites share files that another site has made
    for encoding in ("gzip", "identity", "gzip"):
        answer = await plain.http.get("/web/saved/contributions.html", headers={"accept-encoding": encoding})
        assert answer.headers.get("content-encoding", "identity") == encoding
        assert answer.text == one_file(FILES, "moves")
    assert len(makers) == 1
    assert threading.main_thread() not in makers
