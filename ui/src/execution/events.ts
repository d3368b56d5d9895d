// News of an execution while it runs, and its events page by page: a long log is never held whole.
import { useEffect, useRef, useState } from "preact/hooks";
import { address, call } from "../api/client";
import { follow, type Message } from "../api/stream";
import type { EventDocument } from "../api/types";
import { tellProblem } from "../parts/notes";

const COALESCE = 250;
const PAGE = 500;
const PAGES_MAX = 10;

/** Call `onNews` when something happened, at most 4 times per second, and once when all is over. */
export function useNews(id: string, isLive: boolean, head: number | undefined, onNews: () => void): void {
  const news = useRef(onNews);
  news.current = onNews;
  const isKnown = head !== undefined;
  useEffect(() => {
    if (!isLive || !isKnown) return;
    let stop = new AbortController();
    let timer = 0;
    let last = String(head);
    const tell = () => {
      timer = 0;
      if (!stop.signal.aborted) news.current();
    };
    // A tab that nobody sees holds no connection: a browser has six for each server.
    const look = () => {
      stop.abort();
      if (document.hidden) return;
      const mine = (stop = new AbortController());
      const url = address("/api/executions/{execution_id}/stream", { execution_id: id }, { after: last });
      const take = (message: Message) => {
        last = message.id || last;
        timer ||= window.setTimeout(tell, COALESCE);
      };
      void follow(url, take, mine.signal).then(tell);
    };
    look();
    document.addEventListener("visibilitychange", look);
    return () => {
      document.removeEventListener("visibilitychange", look);
      stop.abort();
      clearTimeout(timer);
    };
  }, [id, isLive, isKnown]);
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
