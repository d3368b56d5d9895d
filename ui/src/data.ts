// What a screen shows, kept while it is asked for again: old data is marked stale, never blanked.
import { useEffect, useRef, useState } from "preact/hooks";
import { expired, Problem } from "./api/client";
import { subscribe } from "./api/live";

export interface Loaded<T> {
  value: T | undefined;
  /** The value is of this key, and not of the one before. */
  isOwn: boolean;
  error: Problem | undefined;
  /** What is shown is being asked for again, or could not be. */
  stale: boolean;
  reload: () => void;
  /** There is news: it is asked for again, but with rests between. */
  hear: () => void;
}

const RETRY_MIN = 2000;
const RETRY_MAX = 30_000;
/** After news it is asked for again, but not for more than a tenth of the time: to count a million takes long. */
const REST = 9;
const REST_MAX = 10_000;

/** Whether the same question may be answered another time: the server is away, busy, or failed. */
export function mayPass(problem: Problem): boolean {
  return problem.status < 400 || problem.status >= 500 || problem.status === 429;
}

/** Ask for something when `key` changes, when there is news of one of the topics, and again every so many
 * milliseconds while the tab is seen. What could not be had is asked for again. */
export function useLoaded<T>(key: string, load: (signal: AbortSignal) => Promise<T>, every = 0, topics: readonly string[] = []): Loaded<T> {
  const [state, setState] = useState<{ key: string; value?: T; error?: Problem; loading: boolean }>({ key, loading: true });
  const again = useRef<() => void>(() => {});
  const news = useRef<() => void>(() => {});
  const rests = expired.value;
  useEffect(() => {
    if (rests) return;
    const stop = new AbortController();
    let timer = 0;
    let pause = every;
    let retry = RETRY_MIN;
    let running = false;
    let wanted = false;
    let [rest, heard, soon] = [0, false, 0];
    news.current = () => {
      if (running) heard = true;
      else soon ||= window.setTimeout(run, rest);
    };
    const run = async () => {
      if (running) {
        wanted = true;
        return;
      }
      running = true;
      clearTimeout(timer);
      clearTimeout(soon);
      [heard, soon] = [false, 0];
      const begun = performance.now();
      try {
        const value = await load(stop.signal);
        if (!stop.signal.aborted) setState({ key, value, loading: false });
        [pause, retry] = [every, RETRY_MIN];
      } catch (error) {
        if (stop.signal.aborted) return;
        const problem = error instanceof Problem ? error : new Problem(0, "broken", String(error));
        pause = every || (mayPass(problem) ? retry : 0);
        retry = Math.min(2 * retry, RETRY_MAX);
        setState((old) => ({ key, ...(old.key === key && old.value !== undefined ? { value: old.value } : {}), error: problem, loading: false }));
      } finally {
        running = false;
        rest = Math.min(REST_MAX, REST * (performance.now() - begun));
      }
      if (stop.signal.aborted) return;
      if (heard) news.current();
      if (wanted) {
        wanted = false;
        void run();
      } else if (pause) timer = window.setTimeout(tick, pause);
    };
    const tick = () => (document.hidden ? (timer = window.setTimeout(tick, pause)) : void run());
    again.current = () => void run();
    setState((old) => ({ ...old, loading: true }));
    void run();
    return () => {
      stop.abort();
      clearTimeout(timer);
      clearTimeout(soon);
    };
  }, [key, every, rests]);
  useEffect(() => {
    const stops = topics.map((topic) => subscribe(topic, () => news.current()));
    return () => stops.forEach((one) => one());
  }, [topics.join()]);
  const own = state.key === key;
  return {
    value: state.value,
    error: own ? state.error : undefined,
    isOwn: own && state.value !== undefined,
    stale: !own || (state.error !== undefined && state.value !== undefined),
    reload: () => again.current(),
    hear: () => news.current(),
  };
}
