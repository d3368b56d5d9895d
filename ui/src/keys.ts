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

/** Whether letters are written there; a box to tick and a slider take none. */
function isTyping(target: EventTarget | null): boolean {
  if (target instanceof HTMLInputElement) return !/^(checkbox|radio|range)$/.test(target.type);
  return target instanceof HTMLElement && (target.isContentEditable || /^(TEXTAREA|SELECT)$/.test(target.tagName) || target.shadowRoot !== null);
}

export function hearKeys(): void {
  addEventListener("keydown", (event) => {
    // Many keyboards have brackets on a third level: AltGr is Control and Alt in some systems.
    if (event.defaultPrevented || (event.altKey && !/^[^\w\s]$/.test(event.key))) return;
    const name = ((event.metaKey || event.ctrlKey) && !event.altKey ? "mod+" : "") + event.key;
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
