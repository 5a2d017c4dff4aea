// A button that records a canvas and saves a video; it is absent if the browser cannot record video.
import { clipFormat, recordClip } from "../core/clip.js";
import { film } from "../core/film.js";
import { html, useEffect, useRef, useState } from "../core/html.js";
import { saveBlob, sizeOf } from "../core/save.js";
import { palette } from "../core/theme.js";

/**
 * canvas: a ref; drawAt(progress) draws on it synchronously. onStart(): the view stops its own playback, and its
 * address names the present frame; onEnd(): it draws its own picture again.
 */
export function ClipButton({ canvas, drawAt, seconds = 10, name, onStart, onEnd }) {
  const [progress, setProgress] = useState(null); // 0 to 1 during the recording
  const [said, setSaid] = useState("");
  const running = useRef(null);
  const latest = useRef({});
  const format = clipFormat();
  const record = async () => {
    running.current = new AbortController();
    setSaid("");
    setProgress(0);
    onStart?.();
    try {
      const options = { seconds, background: palette().paper, signal: running.current.signal, onProgress: setProgress };
      const film = await recordClip(canvas.current, drawAt, options);
      saveBlob(film, `${name}.${format.ending}`);
      setSaid(`Saved, ${sizeOf(film.size)}`);
    } catch (error) {
      setSaid(error.name === "AbortError" ? "" : error.message);
    }
    running.current = null;
    setProgress(null);
    onEnd?.();
  };
  latest.current = { record, onStart };
  useEffect(() => {
    film.set({ seconds, record: format && (() => latest.current.record()), pause: () => latest.current.onStart?.() });
    return () => {
      film.set(null);
      running.current?.abort();
    };
  }, []);
  if (!format) return null;
  const share = progress === null ? 0 : Math.round(progress * 100);
  return html`<span class="clip">
    ${progress === null
      ? html`<button title=${`A film of ${seconds} s, recorded while it plays`} onClick=${record}>Save clip</button>`
      : html`<progress max="100" value=${share} aria-label="Recording the clip"></progress>
          <button onClick=${() => running.current?.abort()}>Stop recording</button>`}
    <span class="hint" role="status">${said}</span>
  </span>`;
}
