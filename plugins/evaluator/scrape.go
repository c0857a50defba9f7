// SPDX-License-Identifier: Apache-2.0

package evaluator

import (
	"context"
	"fmt"
	"net/http"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	prometheus "github.com/prometheus/common/model"

	"github.com/llmctl/llmctl/experiment"
)

// How often the engine's own metrics are read under load, and how long that may
// take: an engine at its limit answers late.
const (
	scrapeInterval = 2 * time.Second
	scrapeTimeout  = 5 * time.Second

	maxMetricsBytes = 16 << 20
)

// Names under which engines report a quantity; the first that is there counts.
var (
	kvUse         = []string{"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"}
	running       = []string{"vllm:num_requests_running", "sglang:num_running_reqs"}
	waiting       = []string{"vllm:num_requests_waiting", "sglang:num_queue_reqs"}
	preemptions   = []string{"vllm:num_preemptions_total", "sglang:num_retracted_requests_total"}
	prefixHits    = []string{"vllm:prefix_cache_hits_total", "sglang:cached_tokens_total"}
	prefixQueries = []string{"vllm:prefix_cache_queries_total", "sglang:prompt_tokens_total"}
	queueTime     = []string{"vllm:request_queue_time_seconds", "sglang:queue_time_seconds"}
)

// page is one reading of an engine's metrics by name.
type page map[string]*dto.MetricFamily

// scraper reads the metrics of one engine.
type scraper struct {
	client *http.Client
	url    string
	apiKey string
}

func (s scraper) read(ctx context.Context) (page, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	res, err := get(ctx, s.client, s.url, s.apiKey)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET /metrics: status %d", res.StatusCode)
	}
	parser := expfmt.NewTextParser(prometheus.UTF8Validation)
	return parser.TextToMetricFamilies(http.MaxBytesReader(nil, res.Body, maxMetricsBytes))
}

// find is the first of the names that the engine reports, or nil.
func (p page) find(names []string) *dto.MetricFamily {
	for _, name := range names {
		if f := p[name]; f != nil {
			return f
		}
	}
	return nil
}

// sum adds a gauge or counter up over its labels, such as the ranks of a
// data-parallel engine.
func (p page) sum(names []string) (total float64, ok bool) {
	f := p.find(names)
	for _, m := range f.GetMetric() {
		total += m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue()
	}
	return total, f != nil
}

// highest is the largest value of a gauge over its labels.
func (p page) highest(names []string) (v float64, ok bool) {
	f := p.find(names)
	for _, m := range f.GetMetric() {
		v = max(v, m.GetGauge().GetValue()+m.GetUntyped().GetValue())
	}
	return v, f != nil
}

// histogram adds up the count and the sum of a histogram.
func (p page) histogram(names []string) (count, sum float64) {
	for _, m := range p.find(names).GetMetric() {
		count += float64(m.GetHistogram().GetSampleCount())
		sum += m.GetHistogram().GetSampleSum()
	}
	return count, sum
}

// watch reads the engine's metrics now, every interval until stop is called, and
// then. Stop returns nil where the engine reports none.
func (s scraper) watch(ctx context.Context, every time.Duration) (stop func() *experiment.EngineMetrics) {
	before, err := s.read(ctx)
	if err != nil || before.find(running) == nil {
		return func() *experiment.EngineMetrics { return nil }
	}
	sampling, cancel := context.WithCancel(ctx)
	var samples []page
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-sampling.Done():
				return
			case <-ticker.C:
				if p, err := s.read(sampling); err == nil {
					samples = append(samples, p)
				}
			}
		}
	}()
	return func() *experiment.EngineMetrics {
		cancel()
		<-done
		after, err := s.read(ctx)
		if err != nil {
			return nil // an engine that died has no counters to compare
		}
		return digest(before, samples, after)
	}
}

// digest turns readings into what is kept of them.
func digest(before page, samples []page, after page) *experiment.EngineMetrics {
	e := &experiment.EngineMetrics{
		Samples:    len(samples),
		KVCacheUse: overSamples(samples, func(p page) (float64, bool) { return p.highest(kvUse) }),
		Running:    overSamples(samples, func(p page) (float64, bool) { return p.sum(running) }),
		Waiting:    overSamples(samples, func(p page) (float64, bool) { return p.sum(waiting) }),
	}
	grown := func(names []string) (float64, bool) {
		a, _ := before.sum(names) // a counter may appear with its first event
		b, ok := after.sum(names)
		return b - a, ok
	}
	if n, ok := grown(preemptions); ok {
		e.Preemptions = experiment.Number(n)
	}
	hits, known := grown(prefixHits)
	if asked, ok := grown(prefixQueries); ok && known && asked > 0 {
		e.PrefixCacheHitRate = experiment.Number(hits / asked)
	}
	count0, sum0 := before.histogram(queueTime)
	count1, sum1 := after.histogram(queueTime)
	if count1 > count0 {
		e.QueueTime = experiment.Number((sum1 - sum0) / (count1 - count0) * 1000)
	}
	return e
}

func overSamples(samples []page, read func(page) (float64, bool)) experiment.Range {
	var n, sum, highest float64
	for _, p := range samples {
		if v, ok := read(p); ok {
			n, sum, highest = n+1, sum+v, max(highest, v)
		}
	}
	if n == 0 {
		return experiment.Range{}
	}
	return experiment.Range{Mean: experiment.Number(sum / n), Max: experiment.Number(highest)}
}
