// News of an execution while it runs, and its events page by page: a long log is never held whole.
import { useEffect, useRef, useState } from "preact/hooks";
import { call } from "../api/client";
import { subscribe } from "../api/live";
import type { EventDocument } from "../api/types";
import { tellProblem } from "../parts/notes";

const PAGE = 500;
const PAGES_MAX = 10;

/** Call `onNews` when something happened, at most 4 times per second. */
export function useNews(id: string, isLive: boolean, onNews: () => void): void {
  const news = useRef(onNews);
  news.current = onNews;
  useEffect(() => (isLive ? subscribe(`execution:${id}`, () => news.current()) : undefined), [id, isLive]);
}

/** Events by number, asked for in pages as they are seen. */
export function usePages(id: string): (seq: number) => EventDocument | undefined {
  const pages = useRef(new Map<number, EventDocument[] | null>());
  const [, redraw] = useState(0);
  useEffect(() => () => pages.current.clear(), [id]);
  return (seq) => {
    const number = Math.floor((seq - 1) / PAGE);
    const known = pages.current.get(number);
    const found = known?.[(seq - 1) % PAGE];
    if (found) return found;
    if (known === null) return undefined;
    pages.current.set(number, null);
    call("GET /api/executions/{execution_id}/events", { path: { execution_id: id }, query: { after: number * PAGE, limit: PAGE } }).then(
      (page) => {
        pages.current.delete(number);
        pages.current.set(number, page.events);
        for (const oldest of pages.current.keys()) {
          if (pages.current.size <= PAGES_MAX) break;
          pages.current.delete(oldest);
        }
        redraw((count) => count + 1);
      },
      (error) => {
        pages.current.delete(number);
        tellProblem(error);
      },
    );
    return undefined;
  };
}
