// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics are vLLM's, under vLLM's names, and two of the simulator's own. All
// times are real seconds, so a time scale above 1 makes them shorter.
type metrics struct {
	registry *prometheus.Registry

	kvUsage, running, waiting              prometheus.Gauge
	preemptions, prefixQueries, prefixHits prometheus.Counter
	promptTokens, generationTokens         prometheus.Counter
	finished                               map[string]prometheus.Counter // by reason
	ttft, itl, e2e, queueTime              prometheus.Histogram

	lag     prometheus.Gauge
	dropped prometheus.Counter
}

// finishReasons are the label values of vllm:request_success_total.
var finishReasons = []string{"stop", "length", "abort", "error"}

func newMetrics(model string) *metrics {
	f := family{prometheus.NewRegistry(), prometheus.Labels{"model_name": model, "engine": "0"}}
	m := &metrics{
		registry:         f.registry,
		kvUsage:          f.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage."),
		running:          f.gauge("vllm:num_requests_running", "Number of requests in model execution batches."),
		waiting:          f.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed."),
		preemptions:      f.counter("vllm:num_preemptions_total", "Cumulative number of preemption from the engine."),
		prefixQueries:    f.counter("vllm:prefix_cache_queries_total", "Prefix cache queries, in tokens."),
		prefixHits:       f.counter("vllm:prefix_cache_hits_total", "Prefix cache hits, in tokens."),
		promptTokens:     f.counter("vllm:prompt_tokens_total", "Number of prefill tokens processed."),
		generationTokens: f.counter("vllm:generation_tokens_total", "Number of generation tokens processed."),
		finished:         map[string]prometheus.Counter{},
		ttft: f.histogram("vllm:time_to_first_token_seconds", "Time to first token in seconds.",
			.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
		itl: f.histogram("vllm:inter_token_latency_seconds", "Inter-token latency in seconds.",
			.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
		e2e:       f.histogram("vllm:e2e_request_latency_seconds", "E2E request latency in seconds.", requestBuckets...),
		queueTime: f.histogram("vllm:request_queue_time_seconds", "Time spent in WAITING phase for request.", requestBuckets...),
		lag:       f.gauge("simulator:step_lag_seconds", "How late the latest step ended, against the model."),
		dropped:   f.counter("simulator:step_lag_dropped_seconds_total", "Lag that was given up because this machine is too slow. More than 0 means that times are longer than the model's."),
	}
	for _, reason := range finishReasons {
		m.finished[reason] = f.with("finished_reason", reason).counter("vllm:request_success_total", "Count of processed requests.")
	}
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

func (m *metrics) step(r StepResult) {
	m.kvUsage.Set(r.Usage)
	m.running.Set(float64(r.Running))
	m.waiting.Set(float64(r.Waiting))
	m.preemptions.Add(float64(r.Preemptions))
	m.generationTokens.Add(float64(len(r.Tokens)))
}

func (m *metrics) idle(usage float64) {
	m.kvUsage.Set(usage)
	m.running.Set(0)
	m.waiting.Set(0)
}

// late records by how much a step ended too late, and what of it is not made
// up for.
func (m *metrics) late(lag, dropped time.Duration) {
	m.lag.Set(lag.Seconds())
	m.dropped.Add(dropped.Seconds())
}

var requestBuckets = []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}

// family makes metrics with the same labels in the same registry.
type family struct {
	registry *prometheus.Registry
	labels   prometheus.Labels
}

func (f family) with(label, value string) family {
	labels := prometheus.Labels{label: value}
	for k, v := range f.labels {
		labels[k] = v
	}
	return family{f.registry, labels}
}

func (f family) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: f.labels})
	f.registry.MustRegister(g)
	return g
}

func (f family) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: f.labels})
	f.registry.MustRegister(c)
	return c
}

func (f family) histogram(name, help string, buckets ...float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: f.labels, Buckets: buckets})
	f.registry.MustRegister(h)
	return h
}
