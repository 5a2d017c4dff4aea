// The moving picture of the open view, for the menu that shares it.
import { Store } from "./store.js";

/** {seconds, record(), pause()} or null. record is null without a format of video; pause writes the frame to the address. */
export const film = new Store(null);
