// SPDX-License-Identifier: Apache-2.0

package evaluator

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
)

func TestTheEnginesOwnMetricsAreReadBeforeDuringAndAfterTheLoad(t *testing.T) {
	for name, c := range map[string]struct {
		pages []string // one per reading; the last one stays
		want  *experiment.EngineMetrics
	}{
		"vllm, two ranks": {
			[]string{
				"vllm:num_requests_running{engine=\"0\"} 0\nvllm:num_requests_running{engine=\"1\"} 0\n" +
					"# TYPE vllm:prefix_cache_hits_total counter\nvllm:prefix_cache_hits_total 100\n# TYPE vllm:prefix_cache_queries_total counter\nvllm:prefix_cache_queries_total 1000\n" +
					"# TYPE vllm:request_queue_time_seconds histogram\nvllm:request_queue_time_seconds_bucket{le=\"+Inf\"} 10\nvllm:request_queue_time_seconds_sum 5\nvllm:request_queue_time_seconds_count 10\n",
				"vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_running{engine=\"1\"} 5\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.5\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.75\n",
				"vllm:num_requests_running{engine=\"0\"} 4\nvllm:num_requests_running{engine=\"1\"} 8\nvllm:num_requests_waiting 4\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.25\n",
				"# TYPE vllm:num_preemptions_total counter\nvllm:num_preemptions_total 7\n" +
					"# TYPE vllm:prefix_cache_hits_total counter\nvllm:prefix_cache_hits_total 200\n# TYPE vllm:prefix_cache_queries_total counter\nvllm:prefix_cache_queries_total 1400\n" +
					"# TYPE vllm:request_queue_time_seconds histogram\nvllm:request_queue_time_seconds_bucket{le=\"+Inf\"} 20\nvllm:request_queue_time_seconds_sum 10\nvllm:request_queue_time_seconds_count 20\n",
			},
			&experiment.EngineMetrics{
				Samples: 2, KVCacheUse: experiment.Range{Mean: new(0.5), Max: new(0.75)}, Running: experiment.Range{Mean: new(10.0), Max: new(12.0)},
				Waiting: experiment.Range{Mean: new(3.0), Max: new(4.0)}, Preemptions: new(7.0), PrefixCacheHitRate: new(0.25), QueueTime: new(500.0),
			},
		},
		"sglang": {
			[]string{
				"sglang:num_running_reqs 0\n# TYPE sglang:cached_tokens_total counter\nsglang:cached_tokens_total 0\n# TYPE sglang:prompt_tokens_total counter\nsglang:prompt_tokens_total 0\n",
				"sglang:num_running_reqs 6\nsglang:token_usage 0.5\n", "sglang:num_running_reqs 6\nsglang:token_usage 0.5\n",
				"# TYPE sglang:cached_tokens_total counter\nsglang:cached_tokens_total 50\n# TYPE sglang:prompt_tokens_total counter\nsglang:prompt_tokens_total 100\n",
			},
			&experiment.EngineMetrics{
				Samples: 2, KVCacheUse: experiment.Range{Mean: new(0.5), Max: new(0.5)}, Running: experiment.Range{Mean: new(6.0), Max: new(6.0)}, PrefixCacheHitRate: new(0.5),
			},
		},
		"another server":   {[]string{"http_requests_total 1\n"}, nil},
		"not Prometheus's": {[]string{"[{\"iter\": 1}]"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var reads, stopping atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n := min(int(reads.Add(1))-1, len(c.pages)-1)
				if stopping.Load() == 0 && n == len(c.pages)-1 && n > 0 {
					<-r.Context().Done() // the last page is for the last reading
					return
				}
				assert.Equal(t, "Bearer secret", r.Header.Get("Authorization"))
				fmt.Fprint(w, c.pages[n])
			}))
			defer server.Close()
			stop := scraper{client: server.Client(), url: server.URL, apiKey: "secret"}.watch(t.Context(), time.Millisecond)
			if len(c.pages) > 1 {
				require.Eventually(t, func() bool { return int(reads.Load()) >= len(c.pages) }, 10*time.Second, time.Millisecond)
			}
			stopping.Store(1)
			assert.Equal(t, c.want, stop())
		})
	}
}
