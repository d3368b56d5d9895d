// The graph of a playbook on a canvas: only what is seen is drawn, and only as much as can be read.
import { useEffect, useMemo, useRef } from "preact/hooks";
import { inkOf, inks, useCanvas } from "../parts/charts";
import { SHAPES, wordOf } from "../parts/status";

export interface Box {
  id: string;
  x: number;
  y: number;
  width: number;
  height: number;
  kinds: string[];
  loop: boolean;
}

export interface Wire {
  from: string;
  to: string;
  onFailure: boolean;
  /** Where it bends, if the layout says so. */
  points: [x: number, y: number][];
}

export interface Drawing {
  entry: string;
  boxes: Box[];
  wires: Wire[];
  width: number;
  height: number;
}

/** What an execution adds to a step. */
export interface Mood {
  status: string;
  attempts: number;
  runs: number;
  loop?: { total: number; done: number; failed: number };
  isCritical?: boolean;
}

export const NO_MOODS: Map<string, Mood> = new Map();
export const NO_ARCS: ReadonlySet<string> = new Set();

interface View {
  x: number;
  y: number;
  scale: number;
}

const TEXT_FROM = 0.45;
const DETAIL_FROM = 0.65;
/** Nearer than this, arcs bend and boxes have edges. */
const FAR_BELOW = 0.15;
const SCALE_MIN = 0.004;
const SCALE_MAX = 2;
const MARGIN = 24;

const paths = new Map<string, Path2D>();
function shape(word: string): Path2D {
  let found = paths.get(word);
  if (!found) paths.set(word, (found = new Path2D(SHAPES[word] ?? SHAPES.pending)));
  return found;
}

export function Graph({
  drawing,
  moods,
  taken,
  selected,
  onSelect,
  view: written,
  onView,
}: {
  drawing: Drawing;
  moods: Map<string, Mood>;
  /** Arcs that tokens went over, as `from>to`. */
  taken: ReadonlySet<string>;
  selected: string;
  onSelect: (step: string) => void;
  /** As it stands in the address: x,y,scale of the middle. */
  view: string;
  onView: (text: string) => void;
}) {
  const view = useRef<View | null>(null);
  const drag = useRef<{ x: number; y: number; moved: boolean } | null>(null);
  const moved = useRef(false);
  const room = useRef("");
  const saving = useRef(0);
  const boxes = useMemo(() => new Map(drawing.boxes.map((one) => [one.id, one])), [drawing]);

  const fit = (width: number, height: number): View => {
    const scale = Math.min(1, (width - 2 * MARGIN) / drawing.width, (height - 2 * MARGIN) / drawing.height);
    const readable = Math.max(scale, Math.min(1, DETAIL_FROM));
    if (readable > scale && (drawing.boxes.length > 40 || scale < TEXT_FROM)) {
      // Too much to read at once: begin at the step that was asked for, or where the flow begins.
      const chosen = boxes.get(selected);
      if (chosen) return { x: chosen.x + chosen.width / 2, y: chosen.y + chosen.height / 2, scale: readable };
      const start = boxes.get(drawing.entry) ?? drawing.boxes[0]!;
      const isNarrow = drawing.width * readable <= width - 2 * MARGIN;
      return { x: isNarrow ? drawing.width / 2 : start.x + (width / 2 - MARGIN) / readable, y: start.y + start.height / 2, scale: readable };
    }
    return { x: drawing.width / 2, y: drawing.height / 2, scale: Math.max(scale, SCALE_MIN) };
  };

  const { canvas, repaint } = useCanvas(
    (context, width, height) => {
      if (!width || !height) return;
      // The room changes while the page fills: until somebody moves the graph, it fits.
      if (!view.current || (!moved.current && room.current !== `${width} ${height}`)) view.current = readView(written) ?? fit(width, height);
      room.current = `${width} ${height}`;
      paint(context, width, height, view.current, drawing, boxes, moods, taken, selected);
    },
    [drawing, moods, taken, selected],
  );

  useEffect(() => {
    view.current = null;
    moved.current = false;
    repaint();
  }, [drawing]);

  const keep = () => {
    moved.current = true;
    repaint();
    clearTimeout(saving.current);
    saving.current = window.setTimeout(() => {
      const { x, y, scale } = view.current!;
      onView(`${Math.round(x)},${Math.round(y)},${scale.toFixed(3)}`);
    }, 300);
  };
  useEffect(() => () => clearTimeout(saving.current), []);

  const zoom = (factor: number, atX?: number, atY?: number) => {
    const now = view.current;
    const element = canvas.current;
    if (!now || !element) return;
    const scale = Math.min(SCALE_MAX, Math.max(SCALE_MIN, now.scale * factor));
    const dx = (atX ?? element.clientWidth / 2) - element.clientWidth / 2;
    const dy = (atY ?? element.clientHeight / 2) - element.clientHeight / 2;
    now.x += dx / now.scale - dx / scale;
    now.y += dy / now.scale - dy / scale;
    now.scale = scale;
    keep();
  };

  useEffect(() => {
    const element = canvas.current!;
    const wheel = (event: WheelEvent) => {
      event.preventDefault();
      if (!view.current) return;
      if (event.ctrlKey || event.metaKey || !event.deltaX) zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), event.offsetX, event.offsetY);
      else {
        view.current.x += event.deltaX / view.current.scale;
        view.current.y += event.deltaY / view.current.scale;
        keep();
      }
    };
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  }, [drawing]);

  // A step that was chosen elsewhere is brought into sight.
  useEffect(() => {
    const box = boxes.get(selected);
    const element = canvas.current;
    const now = view.current;
    if (!box || !element || !now) return;
    const left = (box.x - now.x) * now.scale + element.clientWidth / 2;
    const top = (box.y - now.y) * now.scale + element.clientHeight / 2;
    if (left < 0 || top < 0 || left + box.width * now.scale > element.clientWidth || top + box.height * now.scale > element.clientHeight) {
      now.x = box.x + box.width / 2;
      now.y = box.y + box.height / 2;
      now.scale = Math.max(now.scale, DETAIL_FROM);
      keep();
    }
  }, [selected]);

  const hit = (event: PointerEvent): string | undefined => {
    const now = view.current;
    const element = canvas.current;
    if (!now || !element) return undefined;
    const x = (event.offsetX - element.clientWidth / 2) / now.scale + now.x;
    const y = (event.offsetY - element.clientHeight / 2) / now.scale + now.y;
    return drawing.boxes.find((one) => x >= one.x && x <= one.x + one.width && y >= one.y && y <= one.y + one.height)?.id;
  };

  return (
    <>
      <canvas
        ref={canvas}
        aria-hidden="true"
        onPointerDown={(event) => {
          drag.current = { x: event.clientX, y: event.clientY, moved: false };
          event.currentTarget.setPointerCapture(event.pointerId);
        }}
        onPointerMove={(event) => {
          const now = drag.current;
          if (!now) {
            // Its name may be cut off, or too small to read.
            const over = hit(event);
            event.currentTarget.title = over ?? "";
            event.currentTarget.style.cursor = over ? "pointer" : "";
          }
          if (!now || !view.current) return;
          const [dx, dy] = [event.clientX - now.x, event.clientY - now.y];
          if (!now.moved && Math.hypot(dx, dy) < 4) return;
          drag.current = { x: event.clientX, y: event.clientY, moved: true };
          view.current.x -= dx / view.current.scale;
          view.current.y -= dy / view.current.scale;
          keep();
        }}
        onPointerUp={(event) => {
          const was = drag.current;
          drag.current = null;
          if (was?.moved) return;
          onSelect(hit(event) ?? "");
        }}
      />
      <div class="tools">
        <button type="button" class="bare" aria-label="Zoom in" onClick={() => zoom(1.4)}>+</button>
        <button type="button" class="bare" aria-label="Zoom out" onClick={() => zoom(1 / 1.4)}>−</button>
        <button
          type="button"
          class="bare"
          onClick={() => {
            const element = canvas.current!;
            const scale = Math.min(1, (element.clientWidth - 2 * MARGIN) / drawing.width, (element.clientHeight - 2 * MARGIN) / drawing.height);
            view.current = { x: drawing.width / 2, y: drawing.height / 2, scale: Math.max(scale, SCALE_MIN) };
            keep();
          }}
        >
          fit
        </button>
      </div>
    </>
  );
}

function readView(text: string): View | null {
  const [x, y, scale] = text.split(",").map(Number);
  return text && [x, y, scale].every(Number.isFinite) && scale! > 0 ? { x: x!, y: y!, scale: Math.min(SCALE_MAX, Math.max(SCALE_MIN, scale!)) } : null;
}

function paint(
  context: CanvasRenderingContext2D,
  width: number,
  height: number,
  view: View,
  drawing: Drawing,
  boxes: Map<string, Box>,
  moods: Map<string, Mood>,
  taken: ReadonlySet<string>,
  selected: string,
): void {
  const tint = inks();
  const { scale } = view;
  context.save();
  context.translate(width / 2, height / 2);
  context.scale(scale, scale);
  context.translate(-view.x, -view.y);
  const left = view.x - width / 2 / scale;
  const top = view.y - height / 2 / scale;
  const right = left + width / scale;
  const bottom = top + height / scale;

  const seen = (box: Box) => box.x + box.width >= left && box.x <= right && box.y + box.height >= top && box.y <= bottom;
  if (scale < FAR_BELOW) {
    drawFar(context, drawing, boxes, moods, selected, seen, tint, scale);
    context.restore();
    return;
  }

  context.lineWidth = Math.max(1, 0.75 / scale);
  for (const isTaken of [false, true]) {
    context.strokeStyle = context.fillStyle = tint(isTaken ? "ink" : "line-strong");
    for (const wire of drawing.wires) {
      if (taken.has(`${wire.from}>${wire.to}`) !== isTaken) continue;
      const from = boxes.get(wire.from);
      const to = boxes.get(wire.to);
      if (!from || !to) continue;
      const xs = [from.x, to.x, ...wire.points.map((point) => point[0])];
      const ys = [from.y, to.y, ...wire.points.map((point) => point[1])];
      if (Math.max(...xs) + from.width < left || Math.min(...xs) > right || Math.max(...ys) + from.height < top || Math.min(...ys) > bottom) continue;
      drawWire(context, wire, from, to, scale);
    }
  }
  context.setLineDash([]);

  for (const box of drawing.boxes) {
    if (!seen(box)) continue;
    const mood = moods.get(box.id);
    const tone = mood ? inkOf(mood.status) : "line";
    const isSelected = box.id === selected;
    context.fillStyle = scale < TEXT_FROM && mood ? tint(tone) : tint("page");
    context.strokeStyle = isSelected ? tint("accent") : mood ? tint(tone) : tint("line-strong");
    context.lineWidth = isSelected ? Math.max(2, 2 / scale) : Math.max(1, 0.75 / scale);
    if (!mood && moods.size) context.setLineDash([3, 3]);
    context.beginPath();
    context.roundRect(box.x, box.y, box.width, box.height, 4);
    context.fill();
    context.stroke();
    context.setLineDash([]);
    if (box.loop && scale >= TEXT_FROM) {
      // A loop is one node, with a second edge behind it.
      context.beginPath();
      context.moveTo(box.x + 4, box.y + box.height + 3);
      context.lineTo(box.x + box.width + 3, box.y + box.height + 3);
      context.lineTo(box.x + box.width + 3, box.y + 4);
      context.stroke();
    }
    if (scale < TEXT_FROM) continue;
    const detail = scale >= DETAIL_FROM;
    let textLeft = box.x + 10;
    if (mood && mood.status !== "unchanged") {
      context.save();
      context.translate(box.x + 8, box.y + (detail ? 9 : box.height / 2 - 6));
      context.strokeStyle = tint(tone);
      context.lineWidth = 1.6;
      context.lineCap = "round";
      context.stroke(shape(wordOf(mood.status)));
      context.restore();
      textLeft = box.x + 26;
    }
    context.fillStyle = tint(mood || !moods.size ? "ink" : "quiet");
    context.font = "13px ui-sans-serif, system-ui, sans-serif";
    context.textBaseline = "middle";
    const room = box.x + box.width - textLeft - 8;
    context.fillText(cut(context, box.id, room), textLeft, detail ? box.y + 15 : box.y + box.height / 2);
    if (!detail) continue;
    context.fillStyle = tint("quiet");
    context.font = "11px ui-monospace, Menlo, monospace";
    const loop = mood?.loop;
    const told = loop ? `${short(loop.done + loop.failed)}/${short(loop.total)}` : [box.kinds.join(" "), mood && mood.attempts > mood.runs ? `${mood.attempts} tries` : "", mood && mood.runs > 1 ? `${mood.runs} runs` : ""].filter(Boolean).join(" · ");
    if (loop) {
      const wide = box.width - 34 - 60;
      const total = Math.max(1, loop.total);
      context.fillStyle = tint("quiet-soft");
      context.fillRect(textLeft, box.y + 28, wide, 6);
      context.fillStyle = tint("done");
      context.fillRect(textLeft, box.y + 28, (wide * loop.done) / total, 6);
      context.fillStyle = tint("failed");
      if (loop.failed) context.fillRect(textLeft + (wide * loop.done) / total, box.y + 28, Math.max(2, (wide * loop.failed) / total), 6);
      context.fillStyle = tint("quiet");
      context.fillText(cut(context, told, 64), textLeft + wide + 4, box.y + 31);
    } else context.fillText(cut(context, told, room), textLeft, box.y + 31);
  }
  context.restore();
}

/** A number in the room of a node. */
function short(number: number): string {
  return number < 10_000 ? String(number) : number < 1_000_000 ? `${Math.floor(number / 1000)}k` : `${(number / 1_000_000).toFixed(1)}M`;
}

function drawWire(context: CanvasRenderingContext2D, wire: Wire, from: Box, to: Box, scale: number): void {
  const startX = from.x + from.width;
  const startY = from.y + from.height / 2;
  const endX = to.x;
  const endY = to.y + to.height / 2;
  context.setLineDash(wire.onFailure ? [5, 4] : []);
  context.beginPath();
  context.moveTo(startX, startY);
  if (wire.from === wire.to) {
    context.bezierCurveTo(startX + 30, startY - 40, endX - 30, startY - 60, endX, endY);
  } else if (endX <= startX) {
    // Back to an earlier step: round below.
    const low = Math.max(from.y + from.height, to.y + to.height) + 20;
    context.bezierCurveTo(startX + 50, startY, startX + 40, low, (startX + endX) / 2, low);
    context.bezierCurveTo(endX - 40, low, endX - 50, endY, endX, endY);
  } else {
    const stops: [number, number][] = [...wire.points, [endX, endY]];
    let [x, y] = [startX, startY];
    for (const [nextX, nextY] of stops) {
      const bend = Math.max(12, (nextX - x) / 2);
      context.bezierCurveTo(x + bend, y, nextX - bend, nextY, nextX, nextY);
      [x, y] = [nextX, nextY];
    }
  }
  context.stroke();
  if (scale < 0.3) return;
  context.beginPath();
  context.moveTo(endX, endY);
  context.lineTo(endX - 6, endY - 3.5);
  context.lineTo(endX - 6, endY + 3.5);
  context.fill();
}

/** Thousands of steps from afar: straight arcs and plain boxes, one path for each colour. */
function drawFar(
  context: CanvasRenderingContext2D,
  drawing: Drawing,
  boxes: Map<string, Box>,
  moods: Map<string, Mood>,
  selected: string,
  seen: (box: Box) => boolean,
  tint: (name: string) => string,
  scale: number,
): void {
  context.lineWidth = 0.75 / scale;
  context.strokeStyle = tint("line");
  context.beginPath();
  for (const wire of drawing.wires) {
    const from = boxes.get(wire.from);
    const to = boxes.get(wire.to);
    if (!from || !to || !(seen(from) || seen(to))) continue;
    context.moveTo(from.x + from.width, from.y + from.height / 2);
    for (const [x, y] of wire.points) context.lineTo(x, y);
    context.lineTo(to.x, to.y + to.height / 2);
  }
  context.stroke();
  const byTone = Map.groupBy(drawing.boxes.filter(seen), (box) => {
    const mood = moods.get(box.id);
    return box.id === selected ? "accent" : mood ? inkOf(mood.status) : "line-strong";
  });
  for (const [tone, group] of byTone) {
    context.fillStyle = tint(tone);
    context.beginPath();
    for (const box of group) context.rect(box.x, box.y, box.width, box.height);
    context.fill();
  }
}

/** Its ends are left: names that are alike often differ in the last characters. */
function shortened(text: string, left: number): string {
  const tail = left >> 1;
  return `${text.slice(0, left - tail)}…${text.slice(text.length - tail)}`;
}

const widths = new Map<string, string>();
function cut(context: CanvasRenderingContext2D, text: string, room: number): string {
  const key = `${context.font}|${room | 0}|${text}`;
  let found = widths.get(key);
  if (found !== undefined) return found;
  found = text;
  if (context.measureText(text).width > room) {
    let [low, high] = [0, text.length];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (context.measureText(shortened(text, middle)).width <= room) low = middle;
      else high = middle - 1;
    }
    found = shortened(text, low);
  }
  if (widths.size > 10_000) widths.clear();
  widths.set(key, found);
  return found;
}

