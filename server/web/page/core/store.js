// An observable value for components.
import { useEffect, useState } from "./html.js";

export class Store {
  #value;
  #listeners = new Set();

  constructor(value) {
    this.#value = value;
  }

  get value() {
    return this.#value;
  }

/** An equal value calls no listener. */
  set(value) {
    if (Object.is(value, this.#value)) return;
    this.#value = value;
    for (const listener of [...this.#listeners]) listener(value);
  }

/** Returns a function that removes the listener. */
  follow(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}

export function useStore(store) {
  const [value, setValue] = useState(store.value);
  useEffect(() => {
    setValue(() => store.value); // it may have changed between rendering and subscribing
    return store.follow((next) => setValue(() => next));
  }, [store]);
  return value;
}
