// JSON as people type it into a form: what is wrong with it is said with the name of the field.
import { Problem } from "../api/client";
import { readJson } from "../api/exact";

export function typedJson(field: string, text: string): unknown {
  try {
    return readJson(text);
  } catch (error) {
    throw new Problem(0, "not_json", `${field} is not JSON: ${(error as Error).message}. Texts and names stand in double quotes, as in {"region": "north"}.`);
  }
}

/** An object; null if nothing was typed. */
export function typedObject(field: string, text: unknown): Record<string, unknown> | null {
  const typed = String(text ?? "").trim();
  if (!typed) return null;
  const found = typedJson(field, typed);
  if (typeof found !== "object" || found === null || Array.isArray(found)) {
    throw new Problem(0, "not_an_object", `${field} must be a JSON object, such as {"region": "north"}. Nothing was sent.`);
  }
  return found as Record<string, unknown>;
}
