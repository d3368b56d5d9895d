// Where we are. All state of a view stands in the address, so that every view can be sent to somebody.
import { signal, computed } from "@preact/signals";

/** The path below which the server's root lies: "/" unless a proxy put us elsewhere. */
export const BASE = new URL("..", import.meta.url).pathname;

interface Place {
  path: string;
  query: URLSearchParams;
}

function read(): Place {
  const path = location.pathname.startsWith(BASE) ? location.pathname.slice(BASE.length) : location.pathname.slice(1);
  return { path: `/${path}`, query: new URLSearchParams(location.search) };
}

export const place = signal<Place>(read());

/** The parts of the path, decoded. */
export const words = computed(() => place.value.path.split("/").filter(Boolean).map(decoded));

/** What somebody mistyped stays as it is, and is not found. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function href(path: string): string {
  return BASE + path.replace(/^\//, "");
}

export function go(path: string, options: { replace?: boolean } = {}): void {
  const address = href(path);
  if (address === location.pathname + location.search) return;
  history[options.replace ? "replaceState" : "pushState"](null, "", address);
  place.value = read();
  if (!options.replace) scrollTo(0, 0);
}

/** One value of the query. */
export function asked(key: string): string {
  return place.value.query.get(key) ?? "";
}

/** Change some values of the query; an empty one is taken out. */
export function ask(changes: Record<string, string | null | undefined>, options: { push?: boolean } = {}): void {
  const query = new URLSearchParams(place.value.query);
  for (const [key, value] of Object.entries(changes)) {
    if (value) query.set(key, value);
    else query.delete(key);
  }
  const text = query.toString();
  go(place.value.path + (text ? `?${text}` : ""), { replace: !options.push });
}

export function path(...parts: string[]): string {
  return `/${parts.flatMap((part) => part.split("/")).map(encodeURIComponent).join("/")}`;
}

/** Links inside the app change the address without loading the page again. */
export function followLinks(): void {
  addEventListener("popstate", () => (place.value = read()));
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = (event.target as Element | null)?.closest?.("a");
    if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
    const inside = link.pathname.startsWith(BASE) && !link.pathname.startsWith(`${BASE}api/`) && !link.pathname.startsWith(`${BASE}ui/`);
    if (!inside) return;
    event.preventDefault();
    go(`/${link.pathname.slice(BASE.length)}${link.search}`);
  });
}
