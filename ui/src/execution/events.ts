// The events of one execution, as far as they are kept here, and news of it while it runs.
import { useEffect, useRef, useState } from "preact/hooks";
import { address, call, Problem } from "../api/client";
import { follow } from "../api/stream";
import type { EventDocument } from "../api/types";

export const KEPT_MAX = 5000;
const PAGE = 1000;
const COALESCE = 250;

export interface Log {
  events: EventDocument[];
  /** The number of the last event there is, as far as we know. */
  head: number;
  /** Not all events are kept here. */
  isCut: boolean;
  error: Problem | undefined;
}

/** Events from the first on, at most KEPT_MAX; then live. `onNews` is called at most 4 times per second. */
export function useLog(id: string, isLive: boolean, onNews: () => void): Log {
  const [log, setLog] = useState<Log>({ events: [], head: 0, isCut: false, error: undefined });
  const news = useRef(onNews);
  news.current = onNews;
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    let events: EventDocument[] = [];
    let head = 0;
    let isCut = false;
    const show = () => setLog({ events, head, isCut, error: undefined });
    const listen = () => {
      let waiting: EventDocument[] = [];
      const flush = () => {
        timer = 0;
        if (stop.signal.aborted) return;
        const room = Math.max(0, KEPT_MAX - events.length);
        isCut ||= waiting.length > room;
        events = [...events, ...waiting.slice(0, room)];
        head = Math.max(head, waiting.at(-1)?.seq ?? 0);
        waiting = [];
        show();
        news.current();
      };
      const url = address("/api/executions/{execution_id}/stream", { execution_id: id }, { after: head });
      const following = follow(
        url,
        (message) => {
          const event = JSON.parse(message.data) as EventDocument;
          if (event.seq <= (waiting.at(-1)?.seq ?? head)) return;
          waiting.push(event);
          timer ||= window.setTimeout(flush, COALESCE);
        },
        stop.signal,
      );
      // What happened between two questions is told here once more; and once, when all is over.
      news.current();
      void following.then(() => stop.signal.aborted || news.current());
    };
    const load = async () => {
      try {
        for (;;) {
          const page = await call("GET /api/executions/{execution_id}/events", { path: { execution_id: id }, query: { after: head, limit: PAGE } });
          if (stop.signal.aborted) return;
          events = [...events, ...page.events];
          head = page.next_after;
          isCut = page.more && events.length >= KEPT_MAX;
          show();
          if (!page.more || isCut) break;
        }
        if (isLive) listen();
      } catch (error) {
        if (!stop.signal.aborted) setLog({ events, head, isCut, error: error as Problem });
      }
    };
    void load();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [id, isLive]);
  return log;
}
