// The code of a view, which comes when the view is first opened; and what is done when it does not come.
import { askJson, whenReachable } from "./api.js";
import { useEffect, useRef, useState } from "./html.js";

const UPDATED = Object.assign(
  new Error("The server has another version of this page now, and the code of this view is no longer there."),
  { title: "The page was updated", button: "Reload the page" },
);

/**
 * {module, error, retry} of a view. Browsers may keep that an import failed for as long as the page is open, so it is
 * asked for again under another address. What failed because the server was away comes when it is back; what fails
 * although the server answers is of another version of the page, which only a reload brings.
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
