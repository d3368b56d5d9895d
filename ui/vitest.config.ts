// Unit tests of what can be tested without a server; what people see and do is tested in tests/ui.
import { defineConfig } from "vitest/config";

export default defineConfig({
  test: { environment: "happy-dom", include: ["tests/**/*.test.ts"], pool: "threads", maxWorkers: 1, isolate: false },
});
