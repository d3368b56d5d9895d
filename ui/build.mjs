// Builds the web UI into the Python package: `make ui`. `--watch` builds again after each change.
//
// Every file gets the hash of its content into its name and is written compressed, as the server
// sends it. manifest.json names the files, and the digest of the source that they were built from:
// tests/ui/test_assets.py computes it again and so notices a change that was not built.
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync, readdirSync, rmSync, mkdirSync } from "node:fs";
import { basename, dirname, extname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import * as esbuild from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "../src/noetl/ui/assets");
const TYPES = { ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml" };
const GENERATED = "src/api/types.ts"; // types leave nothing in what is built

function filesBelow(folder) {
  return readdirSync(folder, { withFileTypes: true }).flatMap((one) =>
    one.isDirectory() ? filesBelow(join(folder, one.name)) : [join(folder, one.name)],
  );
}

function sourceDigest() {
  const files = [...filesBelow(join(here, "src")), ...["build.mjs", "package-lock.json", "page.html"].map((name) => join(here, name))]
    .map((path) => [relative(here, path), path])
    .filter(([name]) => name !== GENERATED)
    .sort(([a], [b]) => (a < b ? -1 : 1));
  const digest = createHash("sha256");
  for (const [name, path] of files) digest.update(`${name}\0`).update(readFileSync(path)).update("\0");
  return digest.digest("hex");
}

const digestOf = (bytes) => createHash("sha256").update(bytes).digest("hex").slice(0, 12);

function keep(name, bytes, files) {
  files[name] = TYPES[extname(name)];
  writeFileSync(join(target, `${name}.gz`), gzipSync(bytes, { level: 9 }));
  const best = { params: { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: bytes.length } };
  writeFileSync(join(target, `${name}.br`), brotliCompressSync(bytes, best));
}

async function build() {
  const result = await esbuild.build({
    absWorkingDir: here,
    entryPoints: { app: "src/main.tsx" },
    outdir: "out",
    entryNames: "[name]-[hash]",
    chunkNames: "[name]-[hash]",
    bundle: true,
    splitting: true,
    format: "esm",
    target: "es2022",
    minify: true,
    write: false,
    metafile: true,
    legalComments: "none",
    jsx: "automatic",
    jsxImportSource: "preact",
    logLevel: "warning",
  });
  rmSync(target, { recursive: true, force: true });
  mkdirSync(target, { recursive: true });
  const files = {};
  let script = "", style = "";
  for (const one of result.outputFiles) {
    const name = basename(one.path);
    if (name.startsWith("app-") && name.endsWith(".js")) script = name;
    if (name.startsWith("app-") && name.endsWith(".css")) style = name;
    keep(name, one.contents, files);
  }
  const icon = readFileSync(join(here, "src/icon.svg"));
  const iconName = `icon-${digestOf(icon)}.svg`;
  keep(iconName, icon, files);
  const page = readFileSync(join(here, "page.html"), "utf8")
    .replace("%SCRIPT%", script)
    .replace("%STYLE%", style)
    .replace("%ICON%", iconName);
  writeFileSync(join(target, "page.html"), page);
  const screens = JSON.parse(readFileSync(join(here, "src/screens.json"), "utf8"));
  const manifest = { source: sourceDigest(), screens, files };
  writeFileSync(join(target, "manifest.json"), `${JSON.stringify(manifest, null, 1)}\n`);
  for (const name of Object.keys(files).sort()) {
    const size = readFileSync(join(target, `${name}.gz`)).length;
    console.log(`${name.padEnd(32)} ${(size / 1024).toFixed(1).padStart(7)} KB gzip`);
  }
}

await build();
