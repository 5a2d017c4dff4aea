// The moving picture of the open view, for the menu that shares it.
import { Store } from "./store.js";

/** {seconds, record(), pause()} or null. pause writes the frame to the address. */
export const film = new Store(null);
