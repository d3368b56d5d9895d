// Two small pictures of the same query: how many by time and status, and how long each took.
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { isDark } from "../prefs";
import { toneOf } from "./status";

/** A canvas that is drawn in CSS pixels, again when its size or the theme changes. */
export function useCanvas(draw: (context: CanvasRenderingContext2D, width: number, height: number) => void, inputs: unknown[]) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const latest = useRef(draw);
  latest.current = draw;
  const paint = useRef(() => {});
  useLayoutEffect(() => {
    const element = canvas.current!;
    let frame = 0;
    const now = () => {
      frame = 0;
      const { clientWidth: width, clientHeight: height } = element;
      const scale = devicePixelRatio || 1;
      if (element.width !== Math.round(width * scale) || element.height !== Math.round(height * scale)) {
        element.width = Math.round(width * scale);
        element.height = Math.round(height * scale);
      }
      const context = element.getContext("2d")!;
      context.setTransform(scale, 0, 0, scale, 0, 0);
      context.clearRect(0, 0, width, height);
      latest.current(context, width, height);
    };
    paint.current = () => {
      if (!frame) frame = requestAnimationFrame(now);
    };
    const watch = new ResizeObserver(paint.current);
    watch.observe(element);
    return () => {
      watch.disconnect();
      cancelAnimationFrame(frame);
    };
  }, []);
  useEffect(() => paint.current(), [...inputs, isDark()]);
  return { canvas, repaint: () => paint.current() };
}

/** The colours of the style sheet, by name, as they are for one picture: each is written for light and for dark. */
export function inks(): (name: string) => string {
  const style = getComputedStyle(document.documentElement);
  const known = new Map<string, string>();
  return (name) => {
    let found = known.get(name);
    if (!found) {
      const [light, dark] = style.getPropertyValue(`--${name}`).match(/#\w+/g)!;
      known.set(name, (found = isDark() ? dark! : light!));
    }
    return found;
  };
}

/** The colour of a status in a picture. */
export function inkOf(status: string): string {
  const tone = toneOf(status);
  return tone === "quiet" ? "line-strong" : tone;
}

const STACK = ["COMPLETED", "CANCELLED", "PAUSED", "PENDING", "RUNNING", "FAILED"];

export interface Bucket {
  start: string | null;
  counts: Record<string, number>;
}

/** What is dragged over is a span of time; what is clicked, where somebody asks for clicks, is a place. */
function useSpan(begin: number, end: number, onSpan: (from: number, to: number) => void, onClick?: (event: PointerEvent, box: DOMRect) => void) {
  const pressed = useRef<number | null>(null);
  return {
    onPointerDown: (event: PointerEvent) => {
      pressed.current = event.clientX;
      (event.currentTarget as Element).setPointerCapture(event.pointerId);
    },
    onPointerUp: (event: PointerEvent) => {
      if (pressed.current === null) return;
      const box = (event.currentTarget as Element).getBoundingClientRect();
      const [from, to] = [pressed.current, event.clientX].sort((a, b) => a - b).map((x) => begin + ((x - box.left) / box.width) * (end - begin)) as [number, number];
      if (onClick && Math.abs(event.clientX - pressed.current) <= 4) onClick(event, box);
      else onSpan(from, to);
      pressed.current = null;
    },
  };
}

export function Histogram({ buckets, begin, end, width: seconds, onSpan }: { buckets: Bucket[]; begin: number; end: number; width: number; onSpan: (from: number, to: number) => void }) {
  const most = Math.max(1, ...buckets.map((one) => Object.values(one.counts).reduce((sum, count) => sum + count, 0)));
  const { canvas } = useCanvas(
    (context, width, height) => {
      const ink = inks();
      const slot = (width * seconds * 1000) / (end - begin || 1);
      for (const bucket of buckets) {
        const left = ((Date.parse(bucket.start!) - begin) / (end - begin || 1)) * width;
        let bottom = height - 1;
        for (const status of STACK) {
          const size = ((bucket.counts[status] ?? 0) / most) * (height - 2);
          if (!size) continue;
          context.fillStyle = ink(inkOf(status));
          const tall = Math.max(size, 1.5);
          context.fillRect(left, bottom - tall, Math.max(1, slot - 1), tall);
          bottom -= tall;
        }
      }
      context.fillStyle = ink("line");
      context.fillRect(0, height - 1, width, 1);
    },
    [buckets, begin, end],
  );
  const spans = useSpan(begin, end, (from, to) => {
    const step = seconds * 1000;
    const first = begin + Math.floor((from - begin) / step) * step;
    onSpan(first, Math.max(first + step, to));
  });
  return <canvas ref={canvas} {...spans} role="img" aria-label={`Executions by time: at most ${most} in one bar`} />;
}

export interface Dot {
  at: number;
  seconds: number;
  status: string;
  id: string;
}

export function Scatter({ dots, begin, end, onOpen, onSpan }: { dots: Dot[]; begin: number; end: number; onOpen: (id: string) => void; onSpan: (from: number, to: number) => void }) {
  const low = Math.log10(Math.max(0.001, Math.min(...dots.map((one) => one.seconds))));
  const high = Math.max(low + 1, Math.log10(Math.max(0.002, ...dots.map((one) => one.seconds))));
  const spot = (one: Dot, width: number, height: number): [number, number] => [
    3 + ((one.at - begin) / (end - begin || 1)) * (width - 6),
    height - 4 - ((Math.log10(Math.max(0.001, one.seconds)) - low) / (high - low)) * (height - 8),
  ];
  const { canvas } = useCanvas(
    (context, width, height) => {
      const ink = inks();
      context.fillStyle = ink("line");
      context.fillRect(0, height - 1, width, 1);
      context.lineWidth = 1.5;
      for (const one of dots) {
        const [x, y] = spot(one, width, height);
        context.fillStyle = context.strokeStyle = ink(inkOf(one.status));
        if (one.status === "FAILED") {
          context.beginPath();
          context.moveTo(x - 2.5, y - 2.5);
          context.lineTo(x + 2.5, y + 2.5);
          context.moveTo(x + 2.5, y - 2.5);
          context.lineTo(x - 2.5, y + 2.5);
          context.stroke();
        } else {
          context.beginPath();
          context.arc(x, y, 2, 0, 7);
          context.fill();
        }
      }
    },
    [dots, begin, end],
  );
  const spans = useSpan(begin, end, onSpan, (event, box) => {
    let best: Dot | undefined;
    let distance = 8;
    for (const one of dots) {
      const [x, y] = spot(one, box.width, box.height);
      const away = Math.hypot(x - (event.clientX - box.left), y - (event.clientY - box.top));
      if (away < distance) [best, distance] = [one, away];
    }
    if (best) onOpen(best.id);
  });
  return <canvas ref={canvas} {...spans} role="img" aria-label={`Durations of ${dots.length} executions by time`} />;
}
