// News over one connection for the whole browser: a browser has six for each server, and many tabs.
//
// One tab, elected by a lock that ends with it, reads the stream of all topics that any tab wants and
// tells the others over a channel. Where pages may not take locks (plain HTTP over a network), each
// tab reads for itself while somebody sees it.
import { address } from "./client";
import { follow } from "./stream";

type Listener = () => void;
type Word =
  | { kind: "want"; tab: string; topics: string[] }
  | { kind: "gone"; tab: string }
  | { kind: "leads" }
  | { kind: "news"; topic: string };

interface Reading {
  topics: Set<string>;
  stop: AbortController;
  /** Unbroken since the server said that it tells of them all. */
  tells: boolean;
}

const COALESCE = 250;
const SETTLE = 150;
const AGAIN = 20_000;
const SILENT = 70_000;
const RETRY = 5_000;
const LINGER = 1_000;
const TOPICS_MAX = 50;
const UNHEARD_MAX = 10;

const me = crypto.getRandomValues(new Uint32Array(2)).join("-");
const listeners = new Map<string, Set<Listener>>();
const wanted = new Map<string, { topics: string[]; heard: number }>();
const waiting = new Map<string, number>();
const channel = "BroadcastChannel" in window ? new BroadcastChannel("noetl.live") : null;
const shares = channel !== null && Boolean(navigator.locks);
let leads = false;
/** The stream that is read, and the one that opens to take its place. */
let reading: Reading | null = null;
let opening: Reading | null = null;
let settling = 0;

function hear(topic: string): void {
  if (!listeners.has(topic) || waiting.has(topic)) return;
  waiting.set(
    topic,
    window.setTimeout(() => {
      waiting.delete(topic);
      for (const listener of listeners.get(topic) ?? []) listener();
    }, COALESCE),
  );
}

function tell(topic: string): void {
  hear(topic);
  channel?.postMessage({ kind: "news", topic } satisfies Word);
}

function announce(): void {
  const topics = [...listeners.keys()];
  if (leads || !shares) settle();
  else channel?.postMessage({ kind: "want", tab: me, topics } satisfies Word);
}

function settle(): void {
  clearTimeout(settling);
  settling = window.setTimeout(read, SETTLE);
}

/** Read the topics that somebody wants, if this tab is the one that reads. */
function read(): void {
  if (!leads && (shares || document.hidden)) return hush();
  const now = Date.now();
  for (const [tab, one] of wanted) if (now - one.heard > SILENT) wanted.delete(tab);
  const topics = [...new Set([...listeners.keys(), ...[...wanted.values()].flatMap((one) => one.topics)])].sort().slice(0, TOPICS_MAX);
  if (!topics.length) return hush();
  // More topics than anybody wants any more do no harm: another stream would make every tab look again.
  const read = opening ?? reading;
  if (read && topics.every((topic) => read.topics.has(topic)) && read.topics.size <= topics.length + UNHEARD_MAX) return;
  opening?.stop.abort();
  const mine: Reading = (opening = { topics: new Set(topics), stop: new AbortController(), tells: false });
  const stream = follow(
    address("/api/stream", {}, { topics: topics.join() }),
    ({ event, data }) => {
      if (event === "position") {
        // From here on the server tells of all topics. What happened before, it did not: look once, but
        // for those of which another stream has told until now.
        const told = opening === mine && reading?.tells ? reading.topics : new Set();
        if (!mine.tells) topics.filter((topic) => !told.has(topic)).forEach(tell);
        mine.tells = true;
        if (opening !== mine) return;
        const before = reading;
        [reading, opening] = [mine, null];
        setTimeout(() => before?.stop.abort(), LINGER); // the last that it told may be under way
      } else if (event === "reset") tell((JSON.parse(data) as { topic: string }).topic);
      else if (event === "event") tell(`execution:${/"execution_id":"(\w+)"/.exec(data)?.[1]}`);
      else tell(event);
    },
    mine.stop.signal,
    () => (mine.tells = false),
  );
  void stream.then(() => {
    if (mine.stop.signal.aborted) return;
    if (opening === mine) opening = null;
    if (reading === mine) reading = null;
    setTimeout(settle, RETRY);
  });
}

function hush(): void {
  opening?.stop.abort();
  reading?.stop.abort();
  opening = reading = null;
}

if (shares) {
  channel!.onmessage = ({ data }: MessageEvent<Word>) => {
    if (data.kind === "news") hear(data.topic);
    else if (data.kind === "leads") announce();
    else if (leads) {
      if (data.kind === "want") wanted.set(data.tab, { topics: data.topics, heard: Date.now() });
      else wanted.delete(data.tab);
      settle();
    }
  };
  void navigator.locks.request("noetl.live", () => {
    leads = true;
    channel!.postMessage({ kind: "leads" } satisfies Word);
    settle();
    return new Promise(() => undefined); // for as long as this tab lives
  });
  setInterval(announce, AGAIN);
  addEventListener("pagehide", () => channel!.postMessage({ kind: "gone", tab: me } satisfies Word));
} else document.addEventListener("visibilitychange", settle);

/** Hear of a topic, at most four times per second: `executions`, `execution:ID`, `inbox`, `workers`. */
export function subscribe(topic: string, listener: Listener): () => void {
  const known = listeners.get(topic);
  if (known) known.add(listener);
  else listeners.set(topic, new Set([listener]));
  announce();
  // If the topic is read already, for another tab, no stream opens: what was told before was not heard.
  hear(topic);
  return () => {
    const left = listeners.get(topic);
    left?.delete(listener);
    if (!left?.size) listeners.delete(topic);
    announce();
  };
}
