// Calls of the API, typed by the table of routes.
import { signal } from "@preact/signals";
import { BASE } from "../url";
import { readJson, writeJson } from "./exact";
import type { Calls, Myself } from "./types";

type Name = keyof Calls;
type Given<N extends Name> = (Calls[N] extends { path: infer P } ? { path: P } : {}) &
  (Calls[N]["body"] extends undefined ? {} : { body: Calls[N]["body"] }) & {
    query?: Calls[N]["query"];
    headers?: Record<string, string>;
    signal?: AbortSignal;
  };

/** Why a call failed: what the server said, or that it did not answer. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly details: unknown = null,
  ) {
    super(message);
  }
}

/** Whoever uses this browser; null: nobody is signed in; undefined: not known yet. */
export const me = signal<Myself | null | undefined>(undefined);
/** The session of whoever uses this browser is over: what they see stays, until they have signed in again. */
export const expired = signal(false);
/** Whether the last call reached the server. */
export const reachable = signal(true);

/** `noetl ui FILE`: one execution, and no server with playbooks, schedules or workers. */
export function isRecording(): boolean {
  return me.value?.kind === "visitor";
}

export function may(right: string): boolean {
  return me.value?.rights.includes(right) ?? false;
}

/** Whether they may answer a form that is for that role; the server asks again. */
export function mayAnswer(role: string | undefined): boolean {
  const roles = me.value?.roles ?? [];
  return may("operate") && (!role || roles.includes(role) || roles.includes("admin") || me.value?.kind === "open" || me.value?.kind === "local");
}

export async function call<N extends Name>(name: N, given: Given<N>): Promise<Calls[N]["answer"]> {
  const [method, template] = name.split(" ") as [string, string];
  const told = given as { path?: Record<string, string>; query?: object; body?: unknown; headers?: Record<string, string>; signal?: AbortSignal };
  const response = await fetched(method, template, told);
  return (response.status === 204 ? undefined : readJson(await response.text())) as Calls[N]["answer"];
}

/** Parameters that hold slashes as paths do: they stay as they are, since some proxies refuse escaped ones. */
const DEEP = ["path", "key"];

/** A name as a part of a path. Browsers go up at `..`, however it is written, and nothing has that name. */
function segment(name: string): string {
  return /^\.\.?$/.test(name) ? encodeURIComponent(`${name}…`) : encodeURIComponent(name);
}

export function address(template: string, path: Record<string, string> = {}, query: object = {}): string {
  const filled = template.replace(/\{(\w+)\}/g, (_, key: string) => {
    const name = path[key] ?? "";
    return DEEP.includes(key) ? name.split("/").map(segment).join("/") : segment(name);
  });
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    if (value === undefined || value === null || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) search.append(key, String(one));
  }
  const text = search.toString();
  return BASE + filled.slice(1) + (text ? `?${text}` : "");
}

async function fetched(
  method: string,
  template: string,
  given: { path?: Record<string, string>; query?: object; body?: unknown; headers?: Record<string, string>; signal?: AbortSignal },
): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(address(template, given.path, given.query), {
      method,
      headers: { ...(given.body === undefined ? {} : { "Content-Type": "application/json" }), ...given.headers },
      ...(given.body === undefined ? {} : { body: writeJson(given.body) }),
      ...(given.signal ? { signal: given.signal } : {}),
      credentials: "same-origin",
    });
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
    reachable.value = false;
    throw new Problem(0, "unreachable", "The server does not answer. Is it running?");
  }
  reachable.value = true;
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  const said = body?.error ?? {};
  if (response.status === 401 && template !== "/api/auth/login") {
    if (me.value && template !== "/api/auth/logout") expired.value = true;
    else me.value = null;
  }
  throw new Problem(response.status, said.code ?? String(response.status), said.message ?? response.statusText, said.details);
}

/** What a route answers as text. */
export async function fetchText(template: string, path: Record<string, string>): Promise<string> {
  return (await fetched("GET", template, { path })).text();
}

export async function signOut(): Promise<void> {
  await call("POST /api/auth/logout", {});
  me.value = null;
}

/** Ask who we are; a server without users says so, too. */
export async function whoAmI(): Promise<void> {
  try {
    const found = await call("GET /api/auth/me", {});
    // What somebody else left on this page is not for them.
    if (me.value && me.value.name !== found.name) return location.reload();
    me.value = found;
    expired.value = false;
  } catch (error) {
    if (!(error instanceof Problem && error.status === 401)) throw error;
  }
}
