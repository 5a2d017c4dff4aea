// The picture of the arrows: drawn at each progress, rotated by dragging and keys, described in words.
import { html, useCallback } from "../../core/html.js";
import { select, useSelection } from "../../core/state.js";
import { useStore } from "../../core/store.js";
import { Picture } from "../../parts/picture.js";

const TURN_BY = 10; // degrees per key press
const TURNS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const ACTS = { " ": ["toggle"], ArrowLeft: ["step", -1], ArrowRight: ["step", 1], Home: ["seek", 0], End: ["seek", 1] };
const tallOf = (width) => Math.round(Math.max(320, Math.min(560, width * 0.56)));
const within = (degrees) => ((((Math.round(degrees) + 180) % 360) + 360) % 360) - 180;

/** sceneAt(progress): the function that draws the data; player: see player.js; summary: the content in words. */
export function Figure({ sceneAt, data, player, summary, handle }) {
  const { motion_space: space, motion_yaw: yaw, motion_pitch: pitch } = useSelection();
  const progress = useStore(player.progress);
  const draw = useCallback(sceneAt(progress), [data, space, yaw, pitch, progress]);
  const isSpace = space === "space";
  const turn = (right, up) => select({ motion_yaw: within(yaw + right), motion_pitch: Math.max(-90, Math.min(90, pitch + up)) });
  const onKey = (key, { shiftKey }) => {
    const turns = isSpace && shiftKey && TURNS[key];
    const [act, by] = ACTS[key] ?? [];
    if (turns) turn(...turns.map((side) => side * TURN_BY));
    else if (act) player[act](by);
    return Boolean(turns || act);
  };
  const keys = `Space plays, left and right go by steps${isSpace ? ", Shift and arrows turn" : ""}.`;
  return html`<div class="motion-figure"><${Picture} draw=${draw} height=${tallOf} handle=${handle} onKey=${onKey}
    label="Arrows that are added to the word’s vector" summary=${`${summary} ${keys}`}
    onDrag=${isSpace && ((right, down) => turn(right * 0.5, down * 0.5))} /></div>`;
}
