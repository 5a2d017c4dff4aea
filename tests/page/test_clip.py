"""A film of a canvas's animation: made in the browser, small enough to send, with the frames that were drawn."""

import base64
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.page.conftest import PATIENCE_MS, settle
from tests.support.processes import Server

PART = """
async (seconds) => {
  const { later, use } = await import(document.querySelector("script[type=module]").src);
  await later("views/moves.js");
  const { html, render } = use("core/html.js");
  const { ClipButton } = use("parts/clip_button.js");
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [641, 361];
  const context = canvas.getContext("2d");
  // from blue to orange, a bar for how far it is; all else is transparent
  window.drawAt = (progress) => {
    context.clearRect(0, 0, 641, 361);
    context.fillStyle = progress < 0.5 ? "rgb(20 60 200)" : "rgb(240 140 30)";
    context.fillRect(0, 0, 320, 361);
    context.fillStyle = "rgb(0 160 60)";
    context.fillRect(320, 300, 300 * progress, 40);
  };
  const place = document.createElement("div");
  document.querySelector("main").prepend(place);
  window.ends = 0;
  window.wasRecording = false;
  new MutationObserver(() => {
    window.wasRecording ||= document.querySelector("progress[aria-label='Recording the clip']") !== null;
  }).observe(place, { childList: true, subtree: true });
  const onEnd = () => (window.ends += 1);
  render(html`<${ClipButton} canvas=${{ current: canvas }} drawAt=${window.drawAt} seconds=${seconds} name="film"
    onEnd=${onEnd} />`, place);
}
"""
"""Adds the button to the page, with a canvas of the test and a film of the given number of seconds."""
LONG = 250
"""Seconds of a film: too long to end within a test, and short enough for the page to accept it."""

FRAMES = """
async (base64) => {
  const bytes = Uint8Array.from(atob(base64), (sign) => sign.charCodeAt(0));
  const video = document.createElement("video");
  video.muted = true;
  video.src = URL.createObjectURL(new Blob([bytes]));
  const happened = (name) => new Promise((done) => video.addEventListener(name, done, { once: true }));
  await happened("loadeddata");
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
  const context = canvas.getContext("2d");
  const look = () => {
    context.drawImage(video, 0, 0);
    const at = (x, y) => Array.from(context.getImageData(x, y, 1, 1).data.slice(0, 3));
    return { left: at(160, 180), bar: at(600, 320), rest: at(500, 100) };
  };
  const seek = async (seconds) => {
    const shown = new Promise((done) => video.requestVideoFrameCallback(done)); // some time after "seeked"
    video.currentTime = seconds;
    await happened("seeked");
    await shown;
  };
  await seek(0);
  const first = look();
  await seek(1e6); // the last frame: such films do not say how long they are
  return { size: [canvas.width, canvas.height], seconds: video.currentTime, first, last: look() };
}
"""
"""Decodes a film: its size, its length, and colours of its first and last frame."""


@pytest.fixture
def page(open_page: Page, server: Server) -> Page:
    """The page without its policy: it plays no films, the test does."""
    open_page.goto(f"{server.url}/#view=server")
    settle(open_page)
    open_page.evaluate(PART, 1.5)
    return open_page


def is_near(colour: list[int], wanted: tuple[int, int, int]) -> bool:
    """Return whether a colour is `wanted`, within the loss of a codec."""
    return all(abs(one - other) < 24 for one, other in zip(colour, wanted, strict=True))


def test_a_clip_holds_what_was_drawn_from_the_first_frame_to_the_last(page: Page) -> None:
    with page.expect_download() as download:
        page.get_by_role("button", name="Save clip").click()
    assert download.value.suggested_filename == "film.webm"
    film = download.value.path().read_bytes()
    assert 1000 < len(film) < 5_000_000
    expect(page.locator(".clip")).to_contain_text("Saved, ")
    assert page.evaluate("window.ends") == 1
    assert page.evaluate("window.wasRecording")
    seen: dict[str, Any] = page.evaluate(FRAMES, base64.b64encode(film).decode())
    assert seen["size"] == [642, 362] or seen["size"] == [640, 360]
    assert seen["seconds"] > 1  # more where the machine draws fewer than ten frames a second
    assert is_near(seen["first"]["left"], (20, 60, 200)), seen
    assert is_near(seen["last"]["left"], (240, 140, 30)), seen
    assert is_near(seen["last"]["bar"], (0, 160, 60)), seen
    for frame in ("first", "last"):
        assert is_near(seen[frame]["rest"], (251, 250, 246)), seen  # the page's paper, where nothing is drawn


@pytest.mark.nightly  # a film of ten seconds
def test_the_arrows_of_motion_are_filmed_from_the_embedding_to_the_end(page: Page, server: Server) -> None:
    page.goto("about:blank")
    page.set_viewport_size({"width": 700, "height": 700})
    page.goto(f"{server.url}/#view=motion&text=The+king&motion_at=0.4")
    settle(page)
    with page.expect_download(timeout=2 * PATIENCE_MS) as download:
        page.get_by_role("button", name="Save clip").click()
    assert download.value.suggested_filename == "motion.webm"
    film = download.value.path().read_bytes()
    assert 10_000 < len(film) < 5_000_000
    seen: dict[str, Any] = page.evaluate(FRAMES, base64.b64encode(film).decode())
    assert seen["seconds"] > 9.5
    expect(page.get_by_role("slider", name="Where the arrows are")).to_have_value("0.4")  # where it was before


def test_recording_can_be_stopped_and_a_browser_that_records_nothing_has_no_button(page: Page, server: Server) -> None:
    page.reload()
    settle(page)
    page.evaluate(PART, LONG)
    page.get_by_role("button", name="Save clip").click()
    page.get_by_role("button", name="Stop recording").click()
    expect(page.get_by_role("button", name="Save clip")).to_be_visible()
    expect(page.get_by_role("status").get_by_text("Saved, ")).to_have_count(0)
    page.reload()
    settle(page)
    page.evaluate("delete window.MediaRecorder")
    page.evaluate(PART, LONG)
    expect(page.locator(".clip")).to_have_count(0)


def test_a_clip_that_would_be_too_large_is_made_again_with_fewer_bits(page: Page) -> None:
    sizes = page.evaluate("""
    async () => {
      const { later, use } = await import(document.querySelector("script[type=module]").src);
      await later("views/moves.js");
      const { recordClip } = use("core/clip.js");
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [320, 180];
      const context = canvas.getContext("2d");
      const image = context.createImageData(320, 180);
      const draw = () => { // noise: what compresses worst
        for (let i = 0; i < image.data.length; i += 1) image.data[i] = i % 4 === 3 ? 255 : Math.random() * 256;
        context.putImageData(image, 0, 0);
      };
      const said = (error) => error.message;
      return [
        (await recordClip(canvas, draw, { seconds: 1, maxBytes: 400_000 })).size,
        await recordClip(canvas, draw, { seconds: 0.3, maxBytes: 100 }).then((film) => film.size, said),
      ];
    }""")
    assert 0 < sizes[0] <= 400_000
    assert "larger than can be sent" in sizes[1]
