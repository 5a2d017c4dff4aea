// Which run of the server the page talks to: after a restart it may hold other weights under the same name.
import { connection, root } from "./api.js";
import { saved } from "./place.js";
import { Reading } from "./prometheus.js";
import { Store } from "./store.js";

const CHECKED_MS = 10_000; // what is asked may be this much newer than what is known of the server

/** How many times the server was seen to have begun anew. Where /metrics is closed, none. */
export const restarts = new Store(0);

let began = null; // in seconds since 1970
let lastChecked = -Infinity;

/** Ask when the server began, unless that was asked a moment ago. */
export async function checkServer() {
  if (saved || performance.now() - lastChecked < CHECKED_MS) return;
  lastChecked = performance.now();
  try {
    const response = await fetch(new URL("metrics", root), { cache: "no-store" });
    const now = !response.ok ? null : new Reading(await response.text(), 0).sum("process_start_time_seconds");
    const isAnother = began !== null && now !== null && now !== began;
    began = now ?? began;
    if (isAnother) restarts.set(restarts.value + 1);
  } catch {
    // whoever asks something else hears of it
  }
}

function checkNow() {
  lastChecked = -Infinity;
  checkServer();
}

connection.follow((now) => now === "ok" && checkNow());
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && checkNow());
