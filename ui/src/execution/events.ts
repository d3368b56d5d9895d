// News of an execution while it runs, and its events page by page: a long log is never held whole.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { call } from "../api/client";
import { subscribe } from "../api/live";
import type { EventDocument } from "../api/types";
import { tellProblem } from "../parts/notes";

const PAGE = 500;
const PAGES_MAX = 10;
const ANYWAY = 15_000;

/** Call `onNews` when something happened, at most 4 times per second; also now and then while nothing
 * is heard, since news may not come through: a proxy may hold them back, or a tab that sleeps. */
export function useNews(id: string, isLive: boolean, onNews: () => void): void {
  const news = useRef(onNews);
  news.current = onNews;
  useEffect(() => {
    if (!isLive) return;
    const unsubscribe = subscribe(`execution:${id}`, () => news.current());
    const timer = setInterval(() => document.hidden || news.current(), ANYWAY);
    return () => {
      unsubscribe();
      clearInterval(timer);
    };
  }, [id, isLive]);
}

/** Events by number in pages, at most so many of them: a log of a million is never held whole. */
export class Pages {
  private readonly pages = new Map<number, EventDocument[]>();
  private readonly underWay = new Set<number>();

  constructor(private readonly load: (after: number, limit: number) => Promise<EventDocument[]>) {}

  /** How many events are held. */
  get size(): number {
    return [...this.pages.values()].reduce((sum, page) => sum + page.length, 0);
  }

  /** The event, or what brings it nearer; null while it is under way. What is held of a page that grows stays. */
  at(seq: number): EventDocument | Promise<void> | null {
    const number = Math.floor((seq - 1) / PAGE);
    const known = this.pages.get(number) ?? [];
    const found = known[(seq - 1) % PAGE];
    if (found) return found;
    if (this.underWay.has(number)) return null;
    this.underWay.add(number);
    return this.load(number * PAGE + known.length, PAGE - known.length)
      .then((events) => {
        this.pages.delete(number);
        this.pages.set(number, [...known, ...events]);
        for (const oldest of this.pages.keys()) {
          if (this.pages.size <= PAGES_MAX) break;
          this.pages.delete(oldest);
        }
      })
      .finally(() => this.underWay.delete(number));
  }
}

/** Events of an execution by number, asked for in pages as they are seen. */
export function usePages(id: string): (seq: number) => EventDocument | undefined {
  const pages = useMemo(() => new Pages((after, limit) => call("GET /api/executions/{execution_id}/events", { path: { execution_id: id }, query: { after, limit } }).then((page) => page.events)), [id]);
  const [, redraw] = useState(0);
  return (seq) => {
    const found = pages.at(seq);
    if (found instanceof Promise) found.then(() => redraw((count) => count + 1), tellProblem);
    else if (found) return found;
    return undefined;
  };
}
