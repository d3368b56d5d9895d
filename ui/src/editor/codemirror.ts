// CodeMirror in a shadow root: its styles are constructed sheets there, which the policy of the page allows.
import { autocompletion, closeBrackets, closeBracketsKeymap, type CompletionContext, type CompletionResult, completionKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { yaml } from "@codemirror/lang-yaml";
import { bracketMatching, foldGutter, HighlightStyle, indentOnInput, syntaxHighlighting } from "@codemirror/language";
import { lintGutter, setDiagnostics } from "@codemirror/lint";
import { highlightSelectionMatches, searchKeymap } from "@codemirror/search";
import { EditorState } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, hoverTooltip, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import type { AboutDocument, OfferDocument, Problem } from "../api/types";

export interface Handle {
  text: () => string;
  replace: (text: string) => void;
  show: (problems: readonly Problem[]) => void;
  goTo: (line: number, column: number) => void;
  close: () => void;
}

/** What the server knows of a place in the text; lines and columns count from 1. */
export interface Knowledge {
  offers: (text: string, line: number, column: number) => Promise<OfferDocument[]>;
  about: (text: string, line: number, column: number) => Promise<AboutDocument | null>;
}

const KINDS: Record<string, string> = { key: "property", value: "enum", step: "class", name: "variable", filter: "function", test: "function", function: "function" };

const colours = HighlightStyle.define([
  { tag: tags.propertyName, color: "var(--running)" },
  { tag: tags.definition(tags.propertyName), color: "var(--running)" },
  { tag: [tags.string, tags.content], color: "var(--ink)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--waiting)" },
  { tag: tags.comment, color: "var(--quiet)" },
  { tag: [tags.punctuation, tags.separator], color: "var(--quiet)" },
]);

const MONO = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
const look = EditorView.theme({
  // The ring of the focus lies in it: else the numbers of lines cover its left side.
  "&": { height: "100%", padding: "2px", fontSize: "12px", color: "var(--ink)", backgroundColor: "var(--page)" },
  ".cm-scroller": { fontFamily: MONO, lineHeight: "18px" },
  ".cm-gutters": { backgroundColor: "var(--page)", color: "var(--quiet)", borderRight: "1px solid var(--line)" },
  ".cm-activeLine": { backgroundColor: "color-mix(in srgb, var(--select) 50%, transparent)" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "-2px" },
  ".cm-tooltip, .cm-panels": { backgroundColor: "var(--raised)", color: "var(--ink)", border: "1px solid var(--line-strong)" },
  ".cm-tooltip.cm-tooltip-autocomplete > ul": { fontFamily: MONO, maxHeight: "16em" },
  ".cm-tooltip.cm-tooltip-autocomplete > ul > li": { padding: "1px 8px" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--select)", color: "var(--ink)" },
  ".cm-completionDetail": { color: "var(--quiet)", fontStyle: "normal", marginLeft: "12px" },
  ".cm-about": { padding: "4px 8px", maxWidth: "420px", whiteSpace: "pre-wrap" },
  ".cm-selectionBackground, &.cm-focused .cm-selectionBackground": { backgroundColor: "var(--select) !important" },
});

export function edit(host: HTMLElement, text: string, onChange: (text: string) => void, know: Knowledge): Handle {
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  root.replaceChildren();
  const placed = (state: EditorState, at: number): [line: number, column: number] => {
    const line = state.doc.lineAt(at);
    return [line.number, at - line.from + 1];
  };
  const complete = async (context: CompletionContext): Promise<CompletionResult | null> => {
    const word = context.matchBefore(/[\w-]*/);
    if (!context.explicit && !word?.text && !/[.{|:]\s?$/.test(context.state.sliceDoc(Math.max(0, context.pos - 2), context.pos))) return null;
    const found = await know.offers(context.state.doc.toString(), ...placed(context.state, context.pos));
    if (!found.length || context.aborted) return null;
    return {
      from: word?.from ?? context.pos,
      options: found.map((one) => ({ label: one.text, type: KINDS[one.kind] ?? "text", detail: one.about.length > 60 ? `${one.about.slice(0, 59)}…` : one.about, ...(one.kind === "key" ? { apply: `${one.text}: ` } : {}) })),
      validFor: /^[\w-]*$/,
    };
  };
  const hover = hoverTooltip(async (view, at) => {
    const told = await know.about(view.state.doc.toString(), ...placed(view.state, at));
    if (!told) return null;
    const line = view.state.doc.lineAt(at);
    return {
      pos: line.from + Math.max(0, told.column - 1),
      end: Math.min(line.to, line.from + told.column - 1 + told.word.length),
      create: () => {
        const dom = document.createElement("div");
        dom.className = "cm-about";
        dom.textContent = told.text.replaceAll("`", "").replaceAll("**", "");
        return { dom };
      },
    };
  });
  const view = new EditorView({
    root,
    parent: root,
    state: EditorState.create({
      doc: text,
      extensions: [
        lineNumbers(),
        foldGutter(),
        history(),
        drawSelection(),
        indentOnInput(),
        bracketMatching(),
        closeBrackets(),
        highlightActiveLine(),
        highlightSelectionMatches(),
        lintGutter(),
        autocompletion({ override: [complete], icons: false }),
        hover,
        yaml(),
        syntaxHighlighting(colours),
        look,
        EditorState.tabSize.of(2),
        EditorView.contentAttributes.of({ "aria-label": "Playbook", spellcheck: "false", tabindex: "0" }),
        keymap.of([...closeBracketsKeymap, ...completionKeymap, ...defaultKeymap, ...historyKeymap, ...searchKeymap, indentWithTab]),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) onChange(update.state.doc.toString());
        }),
      ],
    }),
  });
  const placeOf = (line: number, column: number) => {
    const found = view.state.doc.line(Math.min(Math.max(1, line), view.state.doc.lines));
    return Math.min(found.to, found.from + Math.max(0, column - 1));
  };
  return {
    text: () => view.state.doc.toString(),
    replace: (next) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: next } }),
    show: (problems) =>
      view.dispatch(
        setDiagnostics(
          view.state,
          problems.map((one) => {
            const from = placeOf(one.line ?? 1, one.column ?? 1);
            const word = view.state.wordAt(from);
            return { from, to: word?.to ?? Math.min(from + 1, view.state.doc.length), severity: one.severity === "error" ? "error" : "warning", message: `${one.message} [${one.code}]` };
          }),
        ),
      ),
    goTo: (line, column) => {
      const at = placeOf(line, column);
      view.dispatch({ selection: { anchor: at }, effects: EditorView.scrollIntoView(at, { y: "center" }) });
      view.focus();
    },
    close: () => view.destroy(),
  };
}
