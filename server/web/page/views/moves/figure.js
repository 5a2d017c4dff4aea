// The canvas with the arrows: drawn at each progress, rotated by dragging and keys, described in words.
import { hasModifier, html, useLayoutEffect, useRef, useState } from "../../core/html.js";
import { select, useSelection } from "../../core/state.js";
import { useStore } from "../../core/store.js";
import { SvgContext } from "../../core/svg.js";
import { palette, theme } from "../../core/theme.js";
import { Scene } from "./scene.js";

const TURN_BY = 10; // degrees per key press
const COLOURS = ["raised", "line", "muted", "ink", "query", "key", "value", "good"];
const tallOf = (width) => Math.round(Math.max(320, Math.min(560, width * 0.56)));
const within = (degrees) => ((((Math.round(degrees) + 180) % 360) + 360) % 360) - 180;

/** A context on a canvas of that size in CSS pixels; scale: its pixels per CSS pixel. */
function contextOn(canvas, width, height, scale) {
  [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return context;
}

/**
 * data: see way.js; player: see player.js; summary: the picture's content in words; handle: a ref that gets {canvas,
 * drawAt(progress), png(), svg()}.
 */
export function Figure({ data, player, summary, handle }) {
  const { motion_space: space, motion_yaw: yaw, motion_pitch: pitch } = useSelection();
  const [box, canvas] = [useRef(null), useRef(null)];
  const [width, setWidth] = useState(0);
  const mode = useStore(theme);
  const height = tallOf(width);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (width === 0) return undefined;
    const found = palette(); // once, not in each frame: it computes the page's styles
    const colours = Object.fromEntries(COLOURS.map((name) => [name, found[name]]));
    const sceneOn = (context) => new Scene(context, { width, height, colours }, data, { space, yaw, pitch });
    const scene = sceneOn(contextOn(canvas.current, width, height, devicePixelRatio || 1));
    const drawAt = (progress) => scene.draw(progress);
    const drawn = (context) => {
      sceneOn(context).draw(player.progress.value);
      return context;
    };
    const large = () => drawn(contextOn(document.createElement("canvas"), width, height, 2)).canvas;
    drawAt(player.progress.value);
    handle.current = { canvas: canvas.current, drawAt,
      png: () => new Promise((done) => large().toBlob(done, "image/png")),
      svg: async () => new Blob([drawn(new SvgContext(document.createElement("canvas").getContext("2d")))
        .document(width, height, colours.raised)], { type: "image/svg+xml" }) };
    return player.progress.follow(drawAt);
  }, [data, space, yaw, pitch, mode, width]);
  const isSpace = space === "space";
  const turn = (right, up) => select({ motion_yaw: within(yaw + right), motion_pitch: Math.max(-90, Math.min(90, pitch + up)) });
  const drag = useRef(null);
  const onPointerMove = (event) => {
    if (!isSpace || !drag.current || !(event.buttons & 1)) return;
    turn((event.clientX - drag.current[0]) * 0.5, (event.clientY - drag.current[1]) * 0.5);
    drag.current = [event.clientX, event.clientY];
  };
  const onKeyDown = (event) => {
    if (hasModifier(event)) return;
    const turns = isSpace && event.shiftKey && TURNS[event.key];
    const [act, by] = ACTS[event.key] ?? [];
    if (turns) turn(...turns.map((side) => side * TURN_BY));
    else if (act) player[act](by);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const keys = `Space plays, left and right go by steps${isSpace ? ", Shift and arrows turn" : ""}.`;
  return html`<figure class="picture motion-figure">
    <div ref=${box} class="canvases motion-canvas" style=${{ height: `${height}px` }}>
      <canvas ref=${canvas} role="application" aria-roledescription="picture" tabindex="0" aria-describedby="motion-summary"
        aria-label="Arrows that are added to the word’s vector" onKeyDown=${onKeyDown}
        style=${{ width: `${width}px`, height: `${height}px`, ...(isSpace ? { touchAction: "none", cursor: "grab" } : {}) }}
        onPointerDown=${(event) => (drag.current = [event.clientX, event.clientY])} onPointerMove=${onPointerMove}></canvas>
    </div>
    <p class="unseen" id="motion-summary">${summary} ${keys}</p>
  </figure>`;
}

const TURNS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const ACTS = { " ": ["toggle"], ArrowLeft: ["step", -1], ArrowRight: ["step", 1], Home: ["seek", 0], End: ["seek", 1] };
