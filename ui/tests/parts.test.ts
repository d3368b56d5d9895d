// Pieces of the pages that compute something, each against what it promises.
import { expect, test } from "vitest";
import type { EventDocument, Layout } from "../src/api/types";
import { address } from "../src/api/client";
import { read } from "../src/api/stream";
import { Pages } from "../src/execution/events";
import { answers } from "../src/execution/form";
import { failedLine, lineOf } from "../src/execution/step";
import { type Bar, scale } from "../src/execution/timeline";
import { drawn } from "../src/graph/layout";
import { flowOrder } from "../src/graph/tree";
import { lineDiff } from "../src/parts/diff";
import { columnsOf } from "../src/parts/json";
import { hintsFor } from "../src/parts/querybar";
import { typedObject } from "../src/parts/typed";
import { withTerm } from "../src/screens/executions";
import { chosenSpan, count, took } from "../src/time";

/** Numbers that look random and are the same each time. */
function* numbers(seed: number): Generator<number, never> {
  for (let state = seed; ; ) {
    state = (state * 1103515245 + 12345) % 2147483648;
    yield state / 2147483648;
  }
}

test("a diff of lines turns one text into the other, and says no more than it must", () => {
  const chance = numbers(7);
  const text = () => Array.from({ length: Math.floor(chance.next().value * 30) }, () => "abcd"[Math.floor(chance.next().value * 4)]!);
  for (let round = 0; round < 200; round++) {
    const [before, after] = [text(), text()];
    const changes = lineDiff(before, after);
    expect(changes.filter(([kind]) => kind !== "add").map(([, line]) => line)).toEqual(before);
    expect(changes.filter(([kind]) => kind !== "del").map(([, line]) => line)).toEqual(after);
    expect(changes.filter(([kind]) => kind === "same").length).toBe(commonLines(before, after));
  }
});

/** The length of the longest common subsequence, by the book. */
function commonLines(a: string[], b: string[]): number {
  const best = Array.from({ length: a.length + 1 }, () => new Array<number>(b.length + 1).fill(0));
  for (let i = 1; i <= a.length; i++)
    for (let j = 1; j <= b.length; j++) best[i]![j] = a[i - 1] === b[j - 1] ? best[i - 1]![j - 1]! + 1 : Math.max(best[i - 1]![j]!, best[i]![j - 1]!);
  return best[a.length]![b.length]!;
}

test("of a million events at most five thousand are held, and each is asked for once while it is seen", async () => {
  let asked = 0;
  const pages = new Pages(async (after, limit) => {
    asked++;
    return Array.from({ length: limit }, (_, number) => ({ seq: after + number + 1 }) as EventDocument);
  });
  const chance = numbers(3);
  for (let look = 0; look < 300; look++) {
    const seq = 1 + Math.floor(chance.next().value * 1_000_000);
    await pages.at(seq);
    expect((pages.at(seq) as EventDocument).seq).toBe(seq);
    expect(pages.size).toBeLessThanOrEqual(5000);
  }
  const before = asked;
  const first = pages.at(500_001);
  if (first instanceof Promise) await first;
  for (let seq = 500_001; seq <= 500_500; seq++) expect((pages.at(seq) as EventDocument).seq).toBe(seq);
  expect(asked).toBeLessThanOrEqual(before + 1);
});

test("of a page that grows only the new events are asked for, and the others are there meanwhile", async () => {
  const asked: [number, number][] = [];
  let head = 3;
  const pages = new Pages(async (after, limit) => {
    asked.push([after, limit]);
    return Array.from({ length: Math.min(limit, head - after) }, (_, number) => ({ seq: after + number + 1 }) as EventDocument);
  });
  await pages.at(1);
  head = 5;
  const coming = pages.at(5);
  expect((pages.at(3) as EventDocument).seq).toBe(3);
  expect(pages.at(4)).toBe(null);
  await coming;
  expect((pages.at(5) as EventDocument).seq).toBe(5);
  expect(asked).toEqual([[0, 500], [3, 497]]);
});

test("an event that could not be read is asked for again", async () => {
  let broken = true;
  const pages = new Pages(() => (broken ? Promise.reject(new Error("away")) : Promise.resolve([{ seq: 1 } as EventDocument])));
  await expect(pages.at(1)).rejects.toThrow("away");
  broken = false;
  await pages.at(1);
  expect((pages.at(1) as EventDocument).seq).toBe(1);
});

test("time on a line never goes back, fills the line, and squeezes only stretches in which nothing works", () => {
  const bar = (kind: string, from: number, to: number): Bar => ({ kind, from, to, says: "" });
  const bars = [bar("run", 0, 1000), bar("person", 1000, 3_600_000), bar("run", 3_600_000, 3_601_000)];
  const { place, squeezed } = scale(bars, 0, 3_601_000);
  expect(squeezed).toBe(true);
  expect(place(1000)).toBeGreaterThan(0.2);
  expect(place(3_601_000) - place(3_600_000)).toBeCloseTo(place(1000) - place(0), 6);
  expect(place(0)).toBe(0);
  expect(place(3_601_000)).toBeCloseTo(1, 9);
  for (let last = 0, at = 0; at <= 3_601_000; at += 9_973) {
    expect(place(at)).toBeGreaterThanOrEqual(last);
    last = place(at);
  }
  expect(scale([bar("run", 0, 1000), bar("person", 200, 900)], 0, 1000).squeezed).toBe(false);
});

test("a stream is read whole however it is cut", async () => {
  const text = 'retry: 1000\n\n: a comment\n\nevent: inbox\ndata: {"total":\ndata: 2}\n\nid: 7\nevent: event\ndata: ä€\n\n';
  const bytes = new TextEncoder().encode(text);
  for (const size of [1, 2, 3, 7, bytes.length]) {
    const said: string[] = [];
    const body = new ReadableStream<Uint8Array>({
      start(controller) {
        for (let at = 0; at < bytes.length; at += size) controller.enqueue(bytes.slice(at, at + size));
        controller.close();
      },
    });
    await read(body, (message) => said.push(`${message.event} ${message.data}`));
    expect(said).toEqual(['inbox {"total":\n2}', "event ä€"]);
  }
});

test("an address carries what is not empty, and no name can leave its place", () => {
  expect(address("/api/catalog/{path}", { path: "a/b c?d" }, { version: 2, q: "", more: null, type: ["x", "y"] })).toMatch(/api\/catalog\/a\/b%20c%3Fd\?version=2&type=x&type=y$/);
  expect(new URL(address("/api/catalog/{path}", { path: "../auth" }), "http://x/").pathname).toMatch(/api\/catalog\/.+\/auth$/);
  expect(new URL(address("/api/views/{name}", { name: "../a/b" }), "http://x/").pathname).toMatch(/api\/views\/..%2Fa%2Fb$/);
});

test("words of a query complete, also behind a minus, and a term takes the place of its like", () => {
  expect(hintsFor("sta", []).map(([text]) => text)).toEqual(["status:"]);
  expect(hintsFor("-status:fa", []).map(([text]) => text)).toEqual(["-status:failed"]);
  expect(hintsFor("path:or", ["shop/orders", "ops/slow"]).map(([text]) => text)).toEqual(["path:shop/orders"]);
  expect(hintsFor("wai", []).map(([text]) => text)).toEqual(["waits:"]);
  expect(hintsFor("", []).map(([text]) => text)).toContain("id:");
  expect(withTerm("status:failed path:a since:1d", "path", "shop/x y")).toBe('status:failed since:1d path:"shop/x y"');
  expect(withTerm('path:"a b" since:1d', "path", "c")).toBe("since:1d path:c");
});

test("answers of a form have the types of its questions, and what is empty is left out", () => {
  const data = new FormData();
  for (const [name, value] of Object.entries({ n: "7", id: "9007199254740993", f: "2.5", l: "[1]", e: "2", v: "2", m: "x", t: "x", none: "" })) data.set(name, value);
  const question = (name: string, type: string, options?: unknown) => ({ name, type, options });
  const questions = [question("n", "integer"), question("id", "integer"), question("f", "number"), question("l", "list"), question("e", "enum", [1, 2]), question("v", "choice", [{ value: 2, label: "two" }]), question("m", "choice", { x: "an x" }), question("t", "string"), question("none", "string"), question("b", "boolean")];
  expect(answers(questions, data)).toEqual({ n: 7, id: 9007199254740993n, f: 2.5, l: [1], e: 2, v: 2, m: "x", t: "x", b: false });
});

test("a graph has a place for each step, and its twin names each once, in the order of the flow", () => {
  const node = (id: string, x: number, y: number) => ({ id, x, y, kinds: ["noop"], loop: false, waits: false, description: "" });
  const edge = (from: string, to: string) => ({ from, to, points: [], on_failure: false, kind: "next" });
  const layout = { entry: "a", nodes: [node("c", 1, 1), node("b", 1, 0), node("a", 0, 0), node("alone", 0, 2)], edges: [edge("a", "b"), edge("a", "c"), edge("c", "a")] } as unknown as Layout;
  const drawing = drawn(layout);
  expect(flowOrder(drawing)).toEqual(["a", "b", "c", "alone"]);
  const taken = drawing.boxes.map((one) => `${one.x},${one.y}`);
  expect(new Set(taken).size).toBe(4);
  expect(drawing.width).toBeGreaterThan(Math.max(...drawing.boxes.map((one) => one.x)));
});

test("a list is a table only if all its rows have the same plain fields", () => {
  expect(columnsOf([{ a: 1, b: null }, { a: 2, b: "x" }])).toEqual(["a", "b"]);
  expect(columnsOf([{ a: 1 }, { a: { b: 1 } }])).toBeNull();
  expect(columnsOf([{ a: 1 }, { b: 1 }])).toBeNull();
  expect(columnsOf([[1], [2]])).toBeNull();
});

test("a step is found in its text by its own name only", () => {
  const text = "workflow:\n  - step: load_all\n  - desc: x\n    step: 'load'  # here\n  - step: end";
  expect(lineOf(text, "load")).toBe(3);
  expect(lineOf(text, "a.c")).toBe(-1);
});

test("a failure is found in the line of the code that it names", () => {
  const text = "workflow:\n  - step: load\n    tool:\n      kind: python\n      code: |\n        a = 1\n        b = a / 0\n    next: end\n  - step: end";
  const error = { kind: "exception", message: "ZeroDivisionError: division by zero (line 2)" };
  expect(failedLine(text, "load", error)).toBe(6);
  expect(failedLine(text, "load", null)).toBe(1);
  expect(failedLine(text, "load", { ...error, kind: "sql" })).toBe(1);
  expect(failedLine(text, "load", { ...error, details: { execution_id: "17" } })).toBe(1);
  expect(failedLine(text, "load", { ...error, message: "no (line 90)" })).toBe(1);
  expect(failedLine(text, "end", error)).toBe(8);
  const two = text.replace("    next", "      code: |\n        c = 3\n    next");
  expect(failedLine(two, "load", error)).toBe(1);
});

test("durations and numbers read as people write them", () => {
  expect([0, 0.0123, 0.9996, 9.94, 59.96, 3661, 90_000].map(took)).toEqual(["0 ms", "12 ms", "1.0 s", "9.9 s", "1 min 00 s", "1 h 01 min", "1 d 1 h"]);
  expect(took(null)).toBe("–");
  expect([5, 900, 3600, 3660, 86_400, 864_000, 600_000].map(chosenSpan)).toEqual(["5 s", "15 min", "1 h", "1 h 01 min", "1 d", "10 d", "6 d 22 h"]);
  expect(count(1234567)).toBe("1\u2009234\u2009567");
});

test("an object that people type is an object, and nothing is not", () => {
  expect(typedObject("The workload", ' {"days": 3} ')).toEqual({ days: 3 });
  expect(typedObject("The workload", " ")).toBe(null);
  for (const text of ["[1]", '"north"', "null", "7"]) expect(() => typedObject("The workload", text)).toThrow("The workload must be a JSON object");
  expect(() => typedObject("The workload", '{"days":')).toThrow("The workload is not JSON");
});
