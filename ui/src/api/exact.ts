// JSON whose whole numbers stay exact: those that a float would round, such as ids of 64 bits, are read as bigint.

type Revive = (key: string, value: unknown, context?: { source: string }) => unknown;
const parse = JSON.parse as (text: string, revive?: Revive) => unknown;
const raw = (JSON as { rawJSON?: (text: string) => unknown }).rawJSON;

export function readJson(text: string): unknown {
  // To look at each value takes its time; few answers have numbers as long as that.
  if (!/[:[,]\s*-?\d{16}/.test(text) && !/^-?\d{16}/.test(text)) return parse(text);
  // Browsers without `source` round them, as all did.
  return parse(text, (_, value, context) => (typeof value === "number" && context ? readNumber(context.source) : value));
}

export function readNumber(text: string): number | bigint {
  const near = Number(text);
  return /^-?\d+$/.test(text) && !Number.isSafeInteger(near) ? BigInt(text) : near;
}

export function writeJson(value: unknown, indent?: number): string {
  return JSON.stringify(value, (_, one) => (typeof one === "bigint" ? (raw?.(String(one)) ?? Number(one)) : one), indent);
}
