// The form for the server's API key, which is kept in memory only.
import { apiKey, connection } from "../core/api.js";
import { html, useState } from "../core/html.js";

export function KeyForm() {
  const [typed, setTyped] = useState("");
  const give = (event) => {
    event.preventDefault();
    connection.set("ok");
    apiKey.set(typed);
  };
  return html`<form class="banner key-form" aria-label="Access" onSubmit=${give}>
    <label for="api-key">This server needs an API key${apiKey.value && ", and the given key is wrong"}.</label>
    <input id="api-key" type="password" autocomplete="off" required value=${typed}
      onInput=${(event) => setTyped(event.target.value)} />
    <button type="submit">Use it</button>
    <small>It is kept in this page's memory only; a reload forgets it.</small>
  </form>`;
}
