// Server-sent events by fetch: any event name, connected again after a break, ended by 204.
//
// What was missed meanwhile is not asked for: whoever listens looks again after a break.
import { reachable } from "./client";

export interface Message {
  event: string;
  data: string;
}

const RETRY_MIN = 1000;
const RETRY_MAX = 15_000;

/** Follow a stream until it has ended or `stop` says so; breaks are mended by connecting again. */
export async function follow(url: string, onMessage: (message: Message) => void, stop: AbortSignal, onBreak: () => void = () => undefined): Promise<void> {
  let pause = RETRY_MIN;
  while (!stop.aborted) {
    try {
      const response = await fetch(url, { headers: { Accept: "text/event-stream" }, signal: stop, credentials: "same-origin" });
      if (response.status === 204) return;
      if (response.status >= 400 && response.status < 500 && response.status !== 429) return;
      if (!response.ok || !response.body) throw new Error(String(response.status));
      reachable.value = true;
      await read(response.body, (message) => {
        pause = RETRY_MIN;
        onMessage(message);
      });
    } catch (error) {
      if (stop.aborted) return;
      if (error instanceof TypeError) reachable.value = false;
    }
    onBreak();
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(pause * 2, RETRY_MAX);
  }
}

export async function read(body: ReadableStream<Uint8Array>, onMessage: (message: Message) => void): Promise<void> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const message: Message = { event: "message", data: "" };
      for (const line of text.slice(0, end).split("\n")) {
        const colon = line.indexOf(":");
        const value = line.slice(colon + 1).replace(/^ /, "");
        if (colon <= 0) continue;
        const name = line.slice(0, colon);
        if (name === "data") message.data += message.data ? `\n${value}` : value;
        else if (name === "event") message.event = value;
      }
      text = text.slice(end + 2);
      if (message.data) onMessage(message);
    }
  }
}
