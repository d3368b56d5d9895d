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

const dark = matchMedia("(prefers-color-scheme: dark)");
const prefersDark = signal(dark.matches);
dark.addEventListener("change", () => (prefersDark.value = dark.matches));

export function isDark(): boolean {
  return theme.value === "dark" || (theme.value === "system" && prefersDark.value);
}
