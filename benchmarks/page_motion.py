"""Measure a frame of the arrows in a browser: the milliseconds of its script and draw calls, and the frames per second
while they play. The renderer's name is printed too, as WebGL2 may run on the CPU.
"""

from collections.abc import Iterator
from urllib.parse import urlencode

from playwright.sync_api import Browser, expect

from benchmarks.load import percentile
from tests.support.processes import Server

TEXT = "Once upon a time there was a little girl who lived with her grandmother in a house in the wood."
MOST_MS = 8.0
"""Milliseconds of script and draw calls of a frame at the 95th percentile."""
SCENES = {
    "plane, all layers together": {},
    "plane, layer after layer": {"motion_layers": "each"},
    "space, layer after layer": {"motion_layers": "each", "motion_space": "space"},
    "space, three contexts, layer after layer": {
        "motion_show": "contexts",
        "motion_layers": "each",
        "motion_space": "space",
    },
}
# All callbacks of a frame are timed, the page's and preact's; the callbacks of one frame have the same time stamp.
TIME_CALLBACKS = """
const own = window.requestAnimationFrame.bind(window);
window.timed = new Map();
window.requestAnimationFrame = (call) => own((now) => {
  const begin = performance.now();
  call(now);
  window.timed.set(now, (window.timed.get(now) ?? 0) + performance.now() - begin);
});
"""
RENDERER = """
() => {
  const gl = document.createElement("canvas").getContext("webgl2");
  if (!gl) return "2D canvas: there is no WebGL2";
  const info = gl.getExtension("WEBGL_debug_renderer_info");
  return info ? gl.getParameter(info.UNMASKED_RENDERER_WEBGL) : "WebGL2, its name is kept secret";
}
"""


def measure_motion(browser: Browser, server: Server, seconds: float) -> Iterator[tuple[str, str, list[float], float]]:
    """Yield for each scene its name, the renderer's, the milliseconds of each frame, and frames a second."""
    for name, state in SCENES.items():
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        page.add_init_script(TIME_CALLBACKS)
        page.goto(f"{server.url}/#{urlencode({'view': 'motion', 'text': TEXT, 'motion_at': 0, **state})}")
        page.locator(".motion-controls").wait_for(timeout=120_000)
        expect(page.locator("[aria-busy=true], .progress.active, .boot")).to_have_count(0, timeout=120_000)
        page.get_by_role("button", name="Play").click()
        page.evaluate("window.timed.clear()")
        page.wait_for_timeout(1000 * seconds)
        frames = dict(page.evaluate("[...window.timed]"))
        times = sorted(frames)
        yield name, page.evaluate(RENDERER), list(frames.values()), 1e3 * (len(times) - 1) / (times[-1] - times[0])
        page.close()


def report_motion(browser: Browser, server: Server, seconds: float) -> Iterator[str]:
    """Print the table; yield the missed bounds."""
    print("\n| arrows | renderer | script and draw calls, ms p50 | p95 | frames/s |\n|---|---|---|---|---|")
    for name, renderer, times, rate in measure_motion(browser, server, seconds):
        middle, late = percentile(times, 0.5), percentile(times, 0.95)
        print(f"| {name} | {renderer} | {middle:.1f} | {late:.1f} | {rate:.0f} |", flush=True)
        if late > MOST_MS:
            yield f"arrows, {name}: {late:.1f} ms at the 95th percentile, over {MOST_MS}"
