#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Sends requests one after the other and writes what llmctl asks for: the latency
# of whole answers, their rate, and the share of errors.
set -eu

body=$(printf '{"model": "%s", "prompt": "Hello", "max_tokens": 32, "ignore_eos": true}' "$LLMCTL_MODEL")
authorization="Authorization: Bearer ${LLMCTL_API_KEY:-none}"

i=0
while [ "$i" -lt "${LLMCTL_MAX_REQUESTS:-20}" ]; do
	curl -sS -o /dev/null -w '%{http_code} %{time_total}\n' \
		-H 'Content-Type: application/json' -H "$authorization" \
		-d "$body" "$LLMCTL_BASE_URL/v1/completions" || echo "000 0"
	i=$((i + 1))
done | tee /dev/stderr | sort -k 2 -n | awk '
	{ sent++ }
	$1 == 200 { ok++; ms[ok] = $2 * 1000; sum += $2 * 1000 }
	function quantile(p,    h, low) {
		h = (ok - 1) * p; low = int(h)
		return low + 1 < ok ? ms[low + 1] + (h - low) * (ms[low + 2] - ms[low + 1]) : ms[ok]
	}
	END {
		printf "{\"errorRate\": %g, \"requests\": {\"sent\": %d, \"ok\": %d, \"failed\": %d}", (sent - ok) / sent, sent, ok, sent - ok
		if (ok > 0) {
			printf ", \"requestsPerSecond\": %g, \"seconds\": %g", ok * 1000 / sum, sum / 1000
			printf ", \"e2e\": {\"mean\": %g, \"p50\": %g, \"p90\": %g, \"p95\": %g, \"p99\": %g, \"n\": %d}", sum / ok, quantile(.5), quantile(.9), quantile(.95), quantile(.99), ok
		}
		print "}"
	}' > "$LLMCTL_METRICS_FILE"
