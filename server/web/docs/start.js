// Draws the API's description; this file lies at <root>/docs/start.js, so the description is one folder up.
const root = new URL("..", document.currentScript.src);
SwaggerUIBundle({ url: new URL("openapi.json", root).href, dom_id: "#api", deepLinking: true, validatorUrl: null });
