// Identifies the server's process: after a restart it may have other weights under the same name.
import { connection, root } from "./api.js";
import { saved } from "./place.js";
import { Reading } from "./prometheus.js";
import { Store } from "./store.js";

const CHECKED_MS = 10_000; // the server's start time may be older than a request by this much

export const restarts = new Store(0);

let began = null; // in seconds since 1970
let lastChecked = -Infinity;

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
    // other requests report the error
  }
}

function checkNow() {
  lastChecked = -Infinity;
  checkServer();
}

connection.follow((now) => now === "ok" && checkNow());
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && checkNow());
