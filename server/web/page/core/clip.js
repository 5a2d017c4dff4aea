// Video of a canvas, recorded by the browser in real time, with a limit on its size.

const FORMATS = ["webm;codecs=vp9", "webm;codecs=vp8", "webm", "mp4;codecs=avc1.42E01F", "mp4"];
const FRAMES_PER_SECOND = 30;
const [LEAST_BITS, MOST_BITS] = [1e5, 8e6]; // bits per second: fewer give no usable picture, more make no visible difference
const WIDEST = 1280; // pixels
const HELD_MS = 300; // for which the last picture stays

export function clipFormat() {
  if (typeof MediaRecorder === "undefined" || !HTMLCanvasElement.prototype.captureStream) return null;
  const format = FORMATS.find((one) => MediaRecorder.isTypeSupported(`video/${one}`));
  return format ? { type: `video/${format}`, ending: format.split(";")[0] } : null;
}

/** Record `drawAt(progress)`; the blob has at most maxBytes. background: behind transparent pixels. Raises AbortError, or Error. */
export async function recordClip(canvas, drawAt, options) {
  const { seconds, maxBytes = 5e6 } = options;
  let bitsPerSecond = Math.min(MOST_BITS, (maxBytes * 8 * 0.8) / (seconds + HELD_MS / 1000));
  for (; bitsPerSecond >= LEAST_BITS; bitsPerSecond /= 2) {
    const film = await record(canvas, drawAt, { ...options, maxBytes, bitsPerSecond });
    if (film.size <= maxBytes) return film;
  }
  throw new Error("The clip grows larger than can be sent; make the window smaller and try again.");
}

async function record(canvas, drawAt, { seconds, maxBytes, bitsPerSecond, background, signal, onProgress }) {
  const film = filmOf(canvas, background);
  const show = (progress) => {
    drawAt(progress);
    film.take();
    onProgress?.(progress);
  };
  signal?.throwIfAborted();
  show(0);
  const stream = film.canvas.captureStream(FRAMES_PER_SECOND);
  const recorder = new MediaRecorder(stream, { mimeType: clipFormat().type, videoBitsPerSecond: bitsPerSecond });
  const parts = [];
  let size = 0;
  recorder.ondataavailable = ({ data }) => {
    parts.push(data);
    size += data.size;
  };
  const ended = new Promise((done, fail) => {
    recorder.onstop = done;
    recorder.onerror = ({ error }) => fail(error ?? new Error("The browser stopped recording."));
  });
  recorder.start(500);
  try {
    await playThrough(seconds, show, () => signal?.aborted || size > maxBytes);
  } finally {
    if (recorder.state !== "inactive") recorder.stop();
    await ended;
    stream.getTracks().forEach((track) => track.stop());
  }
  signal?.throwIfAborted();
  return new Blob(parts, { type: parts[0].type });
}

/** Show each frame until progress was 1 for a moment. A hidden tab draws nothing: it waits. */
async function playThrough(seconds, show, isOver) {
  const nextFrame = () => new Promise((done) => requestAnimationFrame(done));
  let last = await nextFrame();
  for (let at = 0; at < seconds * 1000 + HELD_MS && !isOver();) {
    const now = await nextFrame();
    at += Math.min(now - last, 100);
    last = now;
    show(Math.min(1, at / (seconds * 1000)));
  }
}

/** An opaque canvas with even lengths for the video, and a function that copies the drawing to it. */
function filmOf(drawn, background) {
  const canvas = document.createElement("canvas");
  const scale = Math.min(1, WIDEST / drawn.width);
  [canvas.width, canvas.height] = [drawn.width, drawn.height].map((length) => Math.max(2, 2 * Math.round((length * scale) / 2)));
  const context = canvas.getContext("2d");
  const take = () => {
    context.fillStyle = background;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(drawn, 0, 0, canvas.width, canvas.height);
  };
  return { canvas, take };
}
