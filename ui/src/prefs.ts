// What this browser remembers of how people like it.
import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
export type Clock = "relative" | "local" | "utc";

function kept<T extends string>(key: string, values: readonly T[]) {
  const found = localStorage.getItem(key) as T | null;
  const value = signal<T>(found && values.includes(found) ? found : values[0]!);
  effect(() => localStorage.setItem(key, value.value));
  return value;
}

export const THEMES: readonly Theme[] = ["system", "light", "dark"];
export const CLOCKS: readonly Clock[] = ["relative", "local", "utc"];
export const theme = kept("noetl.theme", THEMES);
export const clock = kept("noetl.clock", CLOCKS);

effect(() => {
  document.documentElement.dataset.theme = theme.value;
  document.documentElement.dataset.clock = clock.value;
});

/** A condition of the style sheet, as it is now. */
function media(query: string) {
  const found = matchMedia(query);
  const holds = signal(found.matches);
  found.addEventListener("change", () => (holds.value = found.matches));
  return holds;
}

const prefersDark = media("(prefers-color-scheme: dark)");
/** There is no room for one thing beside another: see the end of style.css. */
export const narrow = media("(max-width: 820px)");

export function isDark(): boolean {
  return theme.value === "dark" || (theme.value === "system" && prefersDark.value);
}
