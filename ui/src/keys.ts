// Keys that do something on a screen. The last screen or dialog that came has the first word.
import { useEffect, useRef } from "preact/hooks";

export interface Key {
  key: string;
  says: string;
  run: (event: KeyboardEvent) => void;
}

const layers: { current: Key[] }[] = [];

/** The keys that work just now, for the help. */
export function keysNow(): Key[] {
  const seen = new Set<string>();
  return [...layers].reverse().flatMap((layer) => layer.current.filter((one) => !seen.has(one.key) && seen.add(one.key)));
}

export function useKeys(keys: Key[]): void {
  const layer = useRef(keys);
  layer.current = keys;
  useEffect(() => {
    layers.push(layer);
    return () => void layers.splice(layers.indexOf(layer), 1);
  }, []);
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || target.shadowRoot !== null);
}

export function hearKeys(): void {
  addEventListener("keydown", (event) => {
    const name = (event.metaKey || event.ctrlKey ? "mod+" : "") + event.key;
    if (event.altKey || event.defaultPrevented) return;
    if (!name.startsWith("mod+") && isTyping(event.target)) return;
    // A dialog is modal for keys, too.
    if (document.querySelector("dialog[open]")) return;
    // Enter on a link or button does what the link or button does.
    if (event.key === "Enter" && event.target instanceof HTMLElement && event.target.closest("a, button, summary")) return;
    for (const layer of [...layers].reverse()) {
      const found = layer.current.find((one) => one.key === name);
      if (found) {
        event.preventDefault();
        found.run(event);
        return;
      }
    }
  });
}
