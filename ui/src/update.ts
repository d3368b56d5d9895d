// Whether the server has other pages than this one by now: a page stays open for days.
import { effect, signal } from "@preact/signals";
import { reachable } from "./api/client";
import { BASE } from "./url";

export const updated = signal(false);
const own = document.querySelector<HTMLScriptElement>("script[src]")?.src.split("/").at(-1) ?? "";

/** The page names its script by the digest of what is in it. Nothing is loaded again by itself: somebody may be typing. */
async function look(): Promise<void> {
  const page = await fetch(BASE, { headers: { Accept: "text/html" }, cache: "no-cache" }).catch(() => null);
  if (page?.ok) updated.value = !(await page.text()).includes(own);
}

/** A server with another version was away for a moment, or came while nobody looked. */
export function watchUpdates(): void {
  let wasAway = false;
  effect(() => {
    if (reachable.value && wasAway) void look();
    wasAway = !reachable.value;
  });
  document.addEventListener("visibilitychange", () => document.hidden || void look());
}
