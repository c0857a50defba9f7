// SPDX-License-Identifier: Apache-2.0

package evaluator

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/loadgen"
	"github.com/llmctl/llmctl/plugins/simulator"
	"github.com/llmctl/llmctl/plugins/simulator/simulatortest"
)

// serve runs a simulated engine, very fast, until the test ends.
func serve(t *testing.T, change ...func(*simulator.Config)) experiment.Target {
	t.Helper()
	config := simulator.DefaultConfig()
	for _, f := range change {
		f(&config)
	}
	url := simulatortest.Start(t, config, simulator.Options{ServedModelNames: []string{"m"}, TimeScale: 50})
	return experiment.Target{BaseURL: url, Model: "m"}
}

var env = Environment{Getenv: os.Getenv, Environ: os.Environ()}

func spec(change ...func(*experiment.Spec)) *experiment.Spec {
	s := &experiment.Spec{
		Scenario:   experiment.Scenario{Workload: "fixed(40,8)", Concurrency: 4, MaxRequests: 16, MinRequests: 8},
		Evaluator:  experiment.Plugin{Type: "native"},
		Objectives: experiment.Objectives{Optimize: "outputThroughput", Bounds: []experiment.Bound{{Metric: "ttftP99", Max: true, Limit: 60_000}}},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

func evaluate(t *testing.T, s *experiment.Spec, target experiment.Target) (*experiment.Metrics, string, error) {
	t.Helper()
	plan, problems := Read(s, env)
	require.Empty(t, problems)
	var log bytes.Buffer
	m, err := plan.Evaluator.Evaluate(t.Context(), target, experiment.Traffic{Scenario: s.Scenario, Objectives: s.Objectives, Seed: 1, Log: &log})
	return m, log.String(), err
}

func TestNativeMeasuresAServer(t *testing.T) {
	for _, api := range []string{"completions", "chat"} {
		t.Run(api, func(t *testing.T) {
			m, log, err := evaluate(t, spec(func(s *experiment.Spec) { s.Evaluator.Config = map[string]any{"apiType": api} }), serve(t))
			require.NoError(t, err)
			assert.Equal(t, experiment.Requests{Sent: 16, OK: 16}, m.Requests)
			assert.Equal(t, 4, m.Concurrency)
			assert.Equal(t, 16, m.TTFT.N)
			assert.Zero(t, *m.ErrorRate)
			for _, name := range experiment.MetricNames() {
				open := name == "rate" || strings.HasPrefix(name, "sendDelay") // of an open loop
				assert.Equal(t, open, m.Value(name) == nil, name)
			}
			assert.NotEmpty(t, log)
		})
	}
}

// S35: a proxy that holds answers back makes the time per token look better than it is.
func TestAnAnswerStraightFromTheEngineTellsWhoHoldsItBack(t *testing.T) {
	url := simulatortest.Start(t, simulator.DefaultConfig(), simulator.Options{ServedModelNames: []string{"m"}})
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request := r.Clone(r.Context())
		request.RequestURI, request.URL.Scheme, request.URL.Host = "", "http", strings.TrimPrefix(url, "http://")
		res, err := http.DefaultTransport.RoundTrip(request)
		if !assert.NoError(t, err) {
			return
		}
		defer res.Body.Close()
		answer, err := io.ReadAll(res.Body)
		assert.NoError(t, err)
		maps.Copy(w.Header(), res.Header)
		w.WriteHeader(res.StatusCode)
		_, err = w.Write(answer)
		assert.NoError(t, err)
	}))
	defer proxy.Close()
	// Two thirds of a second, of which the end is 33 ms: time enough for a busy machine to pass the answer on.
	long := spec(func(s *experiment.Spec) { s.Scenario.Workload, s.Scenario.MaxRequests = "fixed(40,96)", 4 })
	m, _, err := evaluate(t, long, experiment.Target{BaseURL: proxy.URL, Model: "m", Direct: url})
	require.NoError(t, err)
	text := strings.Join(m.Warnings, "\n")
	assert.Regexp(t, `buffered_stream: \d of 4 answers came almost at once at their end`, text)
	assert.Regexp(t, `buffered_stream: an answer straight from the engine was streamed, with its first token after \S+ms: `+proxy.URL+` holds answers back`, text)

	plan, problems := Read(long, env)
	require.Empty(t, problems)
	load := plan.settings.load(experiment.Traffic{Scenario: long.Scenario})
	load.Model = "m"
	for direct, want := range map[string]string{
		proxy.URL:                    "an answer straight from the engine came at once, too: it is not http://gateway that holds it back",
		"http://" + closedAddress(t): "whether the engine streams could not be told: a request straight to it failed: connection_refused",
	} {
		assert.Contains(t, straight(t.Context(), experiment.Target{BaseURL: "http://gateway", Direct: direct}, load), want)
	}
}

// closedAddress is one where nothing listens.
func closedAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

func TestAWrongModelIsAConfigurationErrorAtOnce(t *testing.T) {
	target := serve(t)
	target.Model = "other"
	_, _, err := evaluate(t, spec(), target)
	var failure *experiment.Failure
	require.ErrorAs(t, err, &failure)
	assert.Equal(t, experiment.ClassConfig, failure.Class)
	assert.Contains(t, failure.Message, "other")
}

func TestADeadServerIsDataForTheLoopToExplain(t *testing.T) {
	m, _, err := evaluate(t, spec(), experiment.Target{BaseURL: "http://127.0.0.1:1", Model: "m"})
	if err != nil { // refused before the first request: the loop asks the workload as well
		assert.NotErrorIs(t, err, context.Canceled)
		return
	}
	assert.Equal(t, 1.0, *m.ErrorRate)
	assert.Nil(t, m.OutputThroughput)
}

func TestTheModelEvaluatorIsExactAndTheSameEveryTime(t *testing.T) {
	target := serve(t)
	s := spec(func(s *experiment.Spec) { s.Evaluator.Type, s.Scenario.Workload = "model", "uniform(100,900/10,50)" })
	first, log, err := evaluate(t, s, target)
	require.NoError(t, err)
	second, _, err := evaluate(t, s, target)
	require.NoError(t, err)
	assert.Equal(t, first, second)
	assert.Equal(t, experiment.Requests{Sent: 16, OK: 16}, first.Requests)
	assert.Positive(t, *first.OutputThroughput)
	assert.Less(t, *first.TTFT.P50, *first.E2E.P50)
	assert.Equal(t, "16 requests at concurrency 4, computed by the engine's model\n", log)
}

// levels answers each concurrency with a canned TTFT or error.
type levels struct {
	ttft map[int]float64
	fail map[int]error
	seen []experiment.Traffic
}

func (l *levels) Evaluate(_ context.Context, _ experiment.Target, traffic experiment.Traffic) (*experiment.Metrics, error) {
	l.seen = append(l.seen, traffic)
	level := traffic.Scenario.Concurrency
	if err := l.fail[level]; err != nil {
		return nil, err
	}
	ttft := l.ttft[level]
	return &experiment.Metrics{Concurrency: level, TTFT: experiment.Distribution{P99: &ttft}}, nil
}

func TestASweepReportsTheLastLevelThatKeepsTheSLA(t *testing.T) {
	broken := errors.New("connection reset")
	for name, c := range map[string]struct {
		levels  levels
		want    int
		asked   int
		warning bool
		err     error
	}{
		"all pass":                 {levels{ttft: map[int]float64{1: 10, 2: 20, 4: 30}}, 4, 3, false, nil},
		"the last misses":          {levels{ttft: map[int]float64{1: 10, 2: 20, 4: 300}}, 2, 3, false, nil},
		"stops at the first miss":  {levels{ttft: map[int]float64{1: 10, 2: 200, 4: 30}}, 1, 2, false, nil},
		"the first misses":         {levels{ttft: map[int]float64{1: 100}}, 1, 1, false, nil},
		"a crash above a pass":     {levels{ttft: map[int]float64{1: 10}, fail: map[int]error{2: broken}}, 1, 2, true, nil},
		"a crash at the first one": {levels{fail: map[int]error{1: broken}}, 0, 1, false, broken},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := sweep{&c.levels}.Evaluate(t.Context(), experiment.Target{}, experiment.Traffic{
				Scenario:   experiment.Scenario{ConcurrencySweep: []int{1, 2, 4}, MaxRequests: 100, MinRequests: 40},
				Objectives: experiment.Objectives{Bounds: []experiment.Bound{{Metric: "ttftP99", Max: true, Limit: 50}}},
				Log:        &bytes.Buffer{},
			})
			require.Len(t, c.levels.seen, c.asked)
			if c.err != nil {
				require.ErrorIs(t, err, c.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.want, m.Concurrency)
			assert.Equal(t, c.warning, len(m.Warnings) > 0)
			seeds := map[uint64]bool{}
			for i, traffic := range c.levels.seen {
				assert.Equal(t, i > 0, traffic.Warm, "only the first level warms up")
				assert.Equal(t, []int{40, 50, 100}[i], traffic.Scenario.MaxRequests)
				assert.False(t, seeds[traffic.Seed], "each level has prompts of its own")
				seeds[traffic.Seed] = true
			}
		})
	}
}

func TestSettingsAreCheckedByName(t *testing.T) {
	t.Setenv("EMPTY_KEY", "")
	for want, change := range map[string]func(*experiment.Spec){
		"evaluator.type: wrk: unknown; use ":                                           func(s *experiment.Spec) { s.Evaluator.Type = "wrk" },
		"evaluator.config.apiKey: must be env:NAME":                                    func(s *experiment.Spec) { s.Evaluator.Config = map[string]any{"apiKey": "sk-123"} },
		"evaluator.config.apiKey: environment variable EMPTY_KEY is not set":           func(s *experiment.Spec) { s.Evaluator.Config = map[string]any{"apiKey": "env:EMPTY_KEY"} },
		"evaluator.config.apiTyp: unknown key; did you mean apiType?":                  func(s *experiment.Spec) { s.Evaluator.Config = map[string]any{"apiTyp": "chat"} },
		"evaluator.config.apiType: must be completions or chat, is grpc":               func(s *experiment.Spec) { s.Evaluator.Config = map[string]any{"apiType": "grpc"} },
		"evaluator.config.requestTimeout: must be a duration such as 90s, is 90":       func(s *experiment.Spec) { s.Evaluator.Config = map[string]any{"requestTimeout": 90} },
		"evaluator.config.warmupRequests: must be a whole number of at least 0, is -1": func(s *experiment.Spec) { s.Evaluator.Config = map[string]any{"warmupRequests": -1} },
		"evaluator.config.conversationReplay: has no effect unless scenario.workload is conversation_replay": func(s *experiment.Spec) {
			s.Evaluator.Config = map[string]any{"conversationReplay": map[string]any{"numConversations": 1, "inputTokensPerTurn": 1, "outputTokensPerTurn": 1}}
		},
		"evaluator.config.datasetPath: is required by evaluator native": func(s *experiment.Spec) { s.Scenario.Workload = "dataset" },
		"evaluator.config.conversationReplay: numConversations: is required": func(s *experiment.Spec) {
			s.Scenario.Workload = "conversation_replay"
			s.Evaluator.Config = map[string]any{"conversationReplay": map[string]any{"inputTokensPerTurn": 1, "outputTokensPerTurn": 1}}
		},
		"evaluator.config.warmup: ratio must be in [0, 1), is 2":              func(s *experiment.Spec) { s.Evaluator.Config = map[string]any{"warmup": map[string]any{"ratio": 2}} },
		"evaluator.config.command: is not for evaluator native, but for exec": func(s *experiment.Spec) { s.Evaluator.Config = map[string]any{"command": []any{"x"}} },
		"scenario.arrival: \"sometimes\": want constant": func(s *experiment.Spec) {
			s.Scenario.Concurrency, s.Scenario.Rate, s.Scenario.Arrival = 0, 1, "sometimes"
		},
		"scenario.workload: \"normal(512)\"": func(s *experiment.Spec) { s.Scenario.Workload = "normal(512)" },
	} {
		plan, problems := Read(spec(change), env)
		require.Len(t, problems, 1)
		assert.Contains(t, problems[0].String(), want)
		require.Nil(t, plan.Evaluator)
	}
}

func TestTheAPIKeyComesFromTheEnvironment(t *testing.T) {
	t.Setenv("MY_KEY", "secret")
	plan, problems := Read(spec(func(s *experiment.Spec) { s.Evaluator.Config = map[string]any{"apiKey": "env:MY_KEY"} }), env)
	require.Empty(t, problems)
	assert.Equal(t, "secret", plan.APIKey)
	plan, problems = Read(spec(), env)
	require.Empty(t, problems)
	assert.Empty(t, plan.APIKey)
}

// S33: a model that is not served is found before the load, with what is.
func TestAModelThatIsNotServedIsNamedWithThoseThatAre(t *testing.T) {
	target := serve(t)
	target.Model = "other"
	_, log, err := evaluate(t, spec(), target)
	var failed *experiment.Failure
	require.ErrorAs(t, err, &failed)
	assert.Equal(t, experiment.Cause{Class: experiment.ClassConfig, Message: "the server does not serve model other; it serves m"}, failed.Cause)
	assert.Empty(t, log, "no load was put on")
}

// A request that the engine refuses is a configuration error after one, not a
// level of failures.
func TestALargestRequestThatTheEngineRefusesIsFoundByAProbe(t *testing.T) {
	target := serve(t, func(c *simulator.Config) { c.MaxModelLen = 100 })
	_, log, err := evaluate(t, spec(func(s *experiment.Spec) { s.Scenario.Workload = "uniform(10,90/8,20)" }), target)
	var failed *experiment.Failure
	require.ErrorAs(t, err, &failed)
	assert.Equal(t, experiment.ClassConfig, failed.Class)
	assert.Contains(t, failed.Message, "maximum context length")
	assert.Empty(t, log)
}

func TestTheLargestRequestIsKnownBeforeTheRun(t *testing.T) {
	plan, problems := Read(spec(), env)
	require.Empty(t, problems)
	assert.Equal(t, 48, plan.Largest)
	plan, problems = Read(spec(func(s *experiment.Spec) { s.Scenario.Workload = "nonsense" }), env)
	require.NotEmpty(t, problems)
	assert.Equal(t, 0, plan.Largest)
}

func TestNativeKeepsRawRecordsOfEveryLevel(t *testing.T) {
	s := spec(func(s *experiment.Spec) {
		s.Scenario.Concurrency, s.Scenario.ConcurrencySweep = 0, []int{2, 4}
		s.Evaluator.Config = map[string]any{"rawRecords": true}
	})
	plan, problems := Read(s, env)
	require.Empty(t, problems)
	var file bytes.Buffer
	_, err := plan.Evaluator.Evaluate(t.Context(), serve(t), experiment.Traffic{
		Scenario: s.Scenario, Objectives: s.Objectives, Log: io.Discard,
		Requests: func() (io.WriteCloser, error) { return nopCloser{&file}, nil },
	})
	require.NoError(t, err)
	levels, err := loadgen.ReadRecords(&file)
	require.NoError(t, err)
	require.Len(t, levels, 2)
	assert.Equal(t, 2, levels[0].Concurrency)
	assert.NotEmpty(t, levels[0].Warmup)
	assert.Empty(t, levels[1].Warmup, "only the first level warms up")
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func TestNativePutsOnARate(t *testing.T) {
	s := spec(func(s *experiment.Spec) {
		s.Scenario.Concurrency, s.Scenario.Rate, s.Scenario.Arrival = 0, 200, "poisson"
	})
	m, _, err := evaluate(t, s, serve(t))
	require.NoError(t, err)
	assert.Equal(t, 200.0, m.Rate)
	assert.Equal(t, 16, m.SendDelay.N)
	assert.Zero(t, m.Concurrency)
	require.NotNil(t, m.Engine)
	assert.NotNil(t, m.Engine.Preemptions)
}
