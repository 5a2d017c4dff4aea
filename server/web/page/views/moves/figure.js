// The canvas with the arrows: drawn at each progress, rotated by dragging and keys, described in words.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../../core/html.js";
import { select, useSelection } from "../../core/state.js";
import { useStore } from "../../core/store.js";
import { SvgContext } from "../../core/svg.js";
import { palette, theme } from "../../core/theme.js";
import { PlainPainter } from "./painters.js";
import { Scene, shownScene } from "./scene.js";

const TURN_BY = 10; // degrees per key press
const tallOf = (width) => Math.round(Math.max(320, Math.min(560, width * 0.56)));
const within = (degrees) => ((((Math.round(degrees) + 180) % 360) + 360) % 360) - 180;

/** data: see way.js; player: see player.js; summary: the picture's content in words; handle: a ref for saving it. */
export function Figure({ data, player, seconds, summary, handle }) {
  const { motion_space: space, motion_yaw: yaw, motion_pitch: pitch } = useSelection();
  const box = useRef(null);
  const scene = useScene(box, player, seconds, handle);
  const mode = useStore(theme);
  const isSpace = space === "space";
  useLayoutEffect(() => scene?.show(data, { space, yaw, pitch }), [scene, data, space, yaw, pitch, mode]);
  const turn = (right, up) => select({ motion_yaw: within(yaw + right), motion_pitch: Math.max(-90, Math.min(90, pitch + up)) });
  const drag = useRef(null);
  const onPointerMove = (event) => {
    if (!isSpace || !drag.current || !(event.buttons & 1)) return;
    turn((event.clientX - drag.current[0]) * 0.5, (event.clientY - drag.current[1]) * 0.5);
    drag.current = [event.clientX, event.clientY];
  };
  const onKeyDown = (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const act = keysOf(player, isSpace && event.shiftKey ? turn : null)[event.key];
    if (!act) return;
    act();
    event.preventDefault();
    event.stopPropagation();
  };
  const keys = `Space plays, left and right go by steps${isSpace ? ", Shift and arrows turn" : ""}.`;
  return html`<figure class="picture motion-figure">
    <div ref=${box} class="canvases motion-canvas">
      <canvas role="application" aria-roledescription="picture" tabindex="0" aria-label="Arrows that are added to the word’s vector"
        aria-describedby="motion-summary" onKeyDown=${onKeyDown} style=${isSpace && { touchAction: "none", cursor: "grab" }}
        onPointerDown=${(event) => (drag.current = [event.clientX, event.clientY])} onPointerMove=${onPointerMove}></canvas>
    </div>
    <p class="unseen" id="motion-summary">${summary} ${keys}</p>
  </figure>`;
}

function keysOf(player, turn) {
  if (turn) {
    return { ArrowLeft: () => turn(-TURN_BY, 0), ArrowRight: () => turn(TURN_BY, 0), ArrowUp: () => turn(0, -TURN_BY),
      ArrowDown: () => turn(0, TURN_BY) };
  }
  return { " ": player.toggle, ArrowLeft: () => player.step(-1), ArrowRight: () => player.step(1), Home: () => player.seek(0),
    End: () => player.seek(1) };
}

/** The scene on the canvas, with the width of the box, at the player's progress. */
function useScene(box, player, seconds, handle) {
  const [scene, setScene] = useState(null);
  useLayoutEffect(() => {
    const canvas = box.current.querySelector("canvas");
    const made = new Scene(canvas);
    made.progress = player.progress.value;
    setScene(made);
    shownScene.set(made);
    const observer = new ResizeObserver(([entry]) => {
      const width = Math.floor(entry.contentRect.width);
      canvas.style.width = `${width}px`;
      canvas.style.height = box.current.style.height = `${tallOf(width)}px`;
      if (width > 0) made.resize(width, tallOf(width));
    });
    observer.observe(box.current);
    const ends = player.progress.follow((progress) => made.drawAt(progress));
    if (handle) handle.current = { png: () => pngOf(made), svg: async () => svgOf(made) };
    return () => {
      ends();
      observer.disconnect();
      shownScene.set(null);
      made.release();
    };
  }, []);
  useEffect(() => {
    if (scene) scene.seconds = seconds;
  }, [scene, seconds]);
  return scene;
}

function svgOf(scene) {
  const context = new SvgContext(document.createElement("canvas").getContext("2d"));
  scene.drawWith(new PlainPainter(context), 1);
  return new Blob([context.document(scene.width, scene.height, palette().raised)], { type: "image/svg+xml" });
}

/** The picture as a file with two pixels per CSS pixel, as in parts/picture.js. */
function pngOf(scene) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [scene.width * 2, scene.height * 2];
  scene.drawWith(new PlainPainter(canvas.getContext("2d")), 2);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
