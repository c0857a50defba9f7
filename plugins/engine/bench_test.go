// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"strings"
	"testing"
)

func BenchmarkClassify(b *testing.B) {
	e := load(b, "vllm")
	log := strings.Repeat("(EngineCore pid=9) INFO 08-17 10:00:00 [loggers.py:263] Engine 000: Avg prompt throughput: 1000.0 tokens/s, Running: 64 reqs\n", 8192)
	b.SetBytes(int64(len(log)))
	for b.Loop() {
		e.Classify(strings.NewReader(log))
	}
}

func BenchmarkLoad(b *testing.B) {
	for b.Loop() {
		if _, err := Load("vllm"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRender(b *testing.B) {
	e, m, p := load(b, "vllm"), manifest(b, "deployment"), params("maxNumSeqs=256", "gpuMemoryUtilization=0.9")
	for b.Loop() {
		if _, err := e.Render(m, p, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
