// What the browser remembers. Storage that it refuses, as some do in private windows, is replaced for as long
// as the page is open.

const kept = new Map();

/** A store by its name, `localStorage` or `sessionStorage`. */
export function store(kind) {
  return {
    get(name) {
      try {
        return window[kind].getItem(name) ?? kept.get(name) ?? null;
      } catch {
        return kept.get(name) ?? null;
      }
    },
    /** Sets a text, or removes it if it is empty. */
    set(name, value) {
      kept.set(name, value || null);
      try {
        if (value) {
          window[kind].setItem(name, value);
        } else {
          window[kind].removeItem(name);
        }
      } catch {
        // It is kept above.
      }
    },
  };
}
