// Loads the code of a view when the view is first opened, and handles failures.
import { askJson, whenReachable } from "./api.js";
import { useEffect, useRef, useState } from "./html.js";

const UPDATED = Object.assign(
  new Error("The server has another version of this page now, and the code of this view is no longer there."),
  { title: "The page was updated", button: "Reload the page" },
);

/**
 * {module, error, retry} of a view. Browsers may cache a failed import, so a retry uses another address. If the server
 * answers and the import still fails, the page is of another version.
 */
export function useCode(view) {
  const [found, setFound] = useState({ module: null, error: null });
  const attempts = useRef(0);
  const isMissing = useRef(false); // because the server was away
  const fetchCode = () => {
    attempts.current += 1;
    return attempts.current === 1 ? view.load() : view.loadAgain(attempts.current);
  };
  const load = async () => {
    isMissing.current = false;
    setFound({ module: null, error: null });
    const module = await fetchCode().catch(() => null);
    if (module) return setFound({ module, error: null });
    try {
      await askJson("health/ready");
    } catch (error) {
      isMissing.current = true;
      return setFound({ module: null, error });
    }
    const second = await fetchCode().catch(() => null);
    return setFound({ module: second, error: second ? null : UPDATED });
  };
  useEffect(() => {
    load();
    return whenReachable(() => isMissing.current && load());
  }, [view]);
  return { ...found, retry: found.error === UPDATED ? () => location.reload() : load };
}
