// Times and durations as people read them; the exact moment is always one hover away.
import { signal } from "@preact/signals";
import { clock } from "./prefs";

/** Now, as far as relative times need it. */
export const now = signal(Date.now());
setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 1000);

const pad = (number: number, digits = 2) => String(number).padStart(digits, "0");

export function exact(moment: Date, utc: boolean): string {
  const part = (name: "FullYear" | "Month" | "Date" | "Hours" | "Minutes" | "Seconds" | "Milliseconds"): number =>
    utc ? moment[`getUTC${name}`]() : moment[`get${name}`]();
  const day = `${part("FullYear")}-${pad(part("Month") + 1)}-${pad(part("Date"))}`;
  const time = `${pad(part("Hours"))}:${pad(part("Minutes"))}:${pad(part("Seconds"))}.${pad(part("Milliseconds"), 3)}`;
  return `${day} ${time}${utc ? "Z" : ""}`;
}

export function clockTime(moment: Date): string {
  return exact(moment, clock.value === "utc").slice(11);
}

function relative(seconds: number): string {
  const size = Math.abs(seconds);
  const said =
    size < 1 ? "now"
    : size < 60 ? `${Math.floor(size)} s`
    : size < 3600 ? `${Math.floor(size / 60)} min`
    : size < 86400 ? `${Math.floor(size / 3600)} h`
    : `${Math.floor(size / 86400)} d`;
  if (said === "now") return said;
  return seconds < 0 ? `in ${said}` : `${said} ago`;
}

export function moment(text: string): string {
  const date = new Date(text);
  if (clock.value === "relative") return relative((now.value - date.getTime()) / 1000);
  return exact(date, clock.value === "utc").slice(0, 19);
}

/** A moment in the way people chose, with the exact one on hover. */
export function When({ at }: { at: string | null | undefined }) {
  if (!at) return <span class="quiet">–</span>;
  const date = new Date(at);
  return (
    <time dateTime={at} title={`${exact(date, false)} (${at})`}>
      {moment(at)}
    </time>
  );
}

export function took(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.0005) return "0 ms";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${seconds < 10 ? seconds.toFixed(1) : seconds.toFixed(0)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${pad(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${pad(Math.floor(whole / 60) % 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor(whole / 3600) % 24} h`;
}

/** A span that somebody chose, such as 15 min or 1 h: without parts that are zero. */
export function chosenSpan(seconds: number): string {
  return took(seconds).replace(/ 00? (s|min|h)$/, "").replace(/\.0 s$/, " s");
}

/** How long something took, or takes so far. */
export function Took({ from, to, seconds }: { from?: string | null; to?: string | null; seconds?: number | null }) {
  if (seconds !== null && seconds !== undefined) return <span class="num">{took(seconds)}</span>;
  if (!from) return <span class="num quiet">–</span>;
  const end = to ? Date.parse(to) : now.value;
  return <span class={to ? "num" : "num live"}>{took(Math.max(0, (end - Date.parse(from)) / 1000))}</span>;
}

export function count(number: number): string {
  return number.toLocaleString("en").replaceAll(",", "\u2009");
}
