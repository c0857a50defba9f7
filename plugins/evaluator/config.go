// SPDX-License-Identifier: Apache-2.0

package evaluator

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/loadgen"
)

// settings are what the evaluators need beside the traffic.
type settings struct {
	workload      loadgen.Workload
	arrival       loadgen.Arrival
	trace         *loadgen.Trace
	dataset       *loadgen.Dataset
	conversations *loadgen.Conversations

	api            loadgen.API
	apiKey         string
	tls            *tls.Config // of https targets; nil: the system's roots
	baseSeed       uint64
	warmup         int
	warmupRatio    float64
	requestTimeout time.Duration
	allowShort     bool
	rawRecords     bool

	tokenizer   string
	datasetPath string
	replay      map[string]any // conversationReplay as it stands in the file

	command []string
	env     map[string]string
	environ []string // of processes
	secrets []string // what the file refers to as env:NAME: kept out of logs
}

// key is one key of evaluator.config.
type key struct {
	types []string // evaluators that take it; nil: all
	set   func(s *settings, value any, getenv func(string) string) error
}

// Names of the evaluators.
const (
	typeNative    = "native"
	typeModel     = "model"
	typeGenAI     = "genai-bench"
	typeInference = "inference-perf"
	typeExec      = "exec"
)

var (
	ours  = []string{typeNative}
	tools = []string{typeGenAI, typeInference}
)

// configKeys are the keys of evaluator.config.
var configKeys = map[string]key{
	"apiKey":                {nil, setAPIKey},
	"apiType":               {slices.Concat(ours, tools), setAPIType},
	"tokenizerSource":       {tools, func(s *settings, v any, _ func(string) string) error { return setText(&s.tokenizer, v) }},
	"baseSeed":              {[]string{typeNative, typeInference, typeExec}, setBaseSeed},
	"streaming":             {slices.Concat(ours, tools), setStreaming},
	"datasetPath":           {[]string{typeNative, typeInference}, setDataset},
	"conversationReplay":    {[]string{typeNative, typeInference}, setConversations},
	"warmup":                {[]string{typeNative, typeGenAI}, setWarmup},
	"warmupRequests":        {ours, func(s *settings, v any, _ func(string) string) error { return setCount(&s.warmup, v) }},
	"requestTimeout":        {ours, setRequestTimeout},
	"allowShortOutput":      {ours, func(s *settings, v any, _ func(string) string) error { return setTruth(&s.allowShort, v) }},
	"rawRecords":            {ours, func(s *settings, v any, _ func(string) string) error { return setTruth(&s.rawRecords, v) }},
	"insecureSkipTLSVerify": {ours, setInsecure},
	"certificateAuthority":  {ours, setAuthority},
	"command":               {[]string{typeExec}, setCommand},
	"env":                   {[]string{typeExec}, setEnv},
}

// set takes one entry of evaluator.config for an evaluator.
func (s *settings) set(evaluator, name string, value any, getenv func(string) string) error {
	k, known := configKeys[name]
	switch {
	case !known:
		var mine []string
		for other, k := range configKeys {
			if k.takenBy(evaluator) {
				mine = append(mine, other)
			}
		}
		slices.Sort(mine)
		if near := experiment.Nearest(name, slices.Sorted(maps.Keys(configKeys))); near != "" {
			return fmt.Errorf("unknown key; did you mean %s?", near)
		}
		return fmt.Errorf("unknown key; known: %s", strings.Join(mine, ", "))
	case !k.takenBy(evaluator):
		return fmt.Errorf("is not for evaluator %s, but for %s", evaluator, strings.Join(k.types, ", "))
	}
	return k.set(s, value, getenv)
}

func (k key) takenBy(evaluator string) bool {
	return k.types == nil || slices.Contains(k.types, evaluator)
}

func setAPIKey(s *settings, value any, getenv func(string) string) error {
	text, _ := value.(string)
	name, ok := strings.CutPrefix(text, "env:")
	if !ok || name == "" {
		return errors.New("must be env:NAME, the environment variable that holds the key; a key in the file would be stored with the experiment")
	}
	if s.apiKey = getenv(name); s.apiKey == "" {
		return fmt.Errorf("environment variable %s is not set", name)
	}
	s.secrets = append(s.secrets, s.apiKey)
	return nil
}

func setAPIType(s *settings, value any, _ func(string) string) error {
	text, _ := value.(string)
	switch s.api = loadgen.API(text); s.api {
	case loadgen.Completions, loadgen.Chat:
		return nil
	}
	return fmt.Errorf("must be completions or chat, is %v", value)
}

func setBaseSeed(s *settings, value any, _ func(string) string) error {
	var n int
	err := setCount(&n, value)
	s.baseSeed = uint64(n)
	return err
}

func setStreaming(_ *settings, value any, _ func(string) string) error {
	stream := false
	if err := setTruth(&stream, value); err != nil {
		return err
	}
	if !stream {
		return errors.New("must be true: without streaming there is no time to first token")
	}
	return nil
}

func setDataset(s *settings, value any, _ func(string) string) error {
	if err := setText(&s.datasetPath, value); err != nil {
		return err
	}
	file, err := os.Open(s.datasetPath)
	if err != nil {
		return err
	}
	defer file.Close()
	s.dataset, err = loadgen.ReadDataset(s.datasetPath, file)
	return err
}

func setConversations(s *settings, value any, _ func(string) string) (err error) {
	s.replay, _ = value.(map[string]any)
	s.conversations, err = loadgen.ParseConversations(value)
	return err
}

// setWarmup reads {numRequests: n} or {ratio: r}.
func setWarmup(s *settings, value any, _ func(string) string) error {
	entries, ok := value.(map[string]any)
	if !ok {
		return fmt.Errorf("must be a mapping with numRequests or ratio, is %v", value)
	}
	for name, v := range entries {
		switch name {
		case "numRequests":
			if err := setCount(&s.warmup, v); err != nil {
				return fmt.Errorf("numRequests %w", err)
			}
		case "ratio":
			f, ok := number(v)
			if !ok || f < 0 || f >= 1 || math.IsNaN(f) {
				return fmt.Errorf("ratio must be in [0, 1), is %v", v)
			}
			s.warmupRatio = f
		default:
			return fmt.Errorf("unknown key %s; known: numRequests, ratio", name)
		}
	}
	return nil
}

func setRequestTimeout(s *settings, value any, _ func(string) string) error {
	text, isText := value.(string)
	d, err := time.ParseDuration(text)
	if !isText || err != nil || d < 0 {
		return fmt.Errorf("must be a duration such as 90s, is %v", value)
	}
	s.requestTimeout = d
	return nil
}

func setInsecure(s *settings, value any, _ func(string) string) error {
	var insecure bool
	if err := setTruth(&insecure, value); err != nil {
		return err
	}
	s.needTLS().InsecureSkipVerify = insecure
	return nil
}

func setAuthority(s *settings, value any, _ func(string) string) error {
	var path string
	if err := setText(&path, value); err != nil {
		return err
	}
	pem, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s holds no certificate in PEM form", path)
	}
	s.needTLS().RootCAs = pool
	return nil
}

func (s *settings) needTLS() *tls.Config {
	if s.tls == nil {
		s.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return s.tls
}

func setCommand(s *settings, value any, _ func(string) string) error {
	list, _ := value.([]any)
	for _, entry := range list {
		word, ok := entry.(string)
		if !ok {
			return fmt.Errorf("must be a list of texts; %v is none (use quotes)", entry)
		}
		s.command = append(s.command, word)
	}
	if len(s.command) == 0 || s.command[0] == "" {
		return errors.New("must be a list: the program and its arguments")
	}
	return nil
}

func setEnv(s *settings, value any, getenv func(string) string) error {
	entries, ok := value.(map[string]any)
	if !ok {
		return fmt.Errorf("must be a mapping of names to texts, is %v", value)
	}
	s.env = map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		text, ok := entries[name].(string)
		if !ok {
			return fmt.Errorf("%s must be text, is %v (use quotes)", name, entries[name])
		}
		if from, ok := strings.CutPrefix(text, "env:"); ok {
			if text = getenv(from); text == "" {
				return fmt.Errorf("%s: environment variable %s is not set", name, from)
			}
			s.secrets = append(s.secrets, text)
		}
		s.env[name] = text
	}
	return nil
}

func setText(into *string, value any) error {
	text, ok := value.(string)
	if !ok || text == "" {
		return fmt.Errorf("must be text, is %v", value)
	}
	*into = text
	return nil
}

func setTruth(into *bool, value any) error {
	truth, ok := value.(bool)
	if !ok {
		return fmt.Errorf("must be true or false, is %v", value)
	}
	*into = truth
	return nil
}

func setCount(into *int, value any) error {
	f, ok := number(value)
	if !ok || f < 0 || f > 1<<53 || f != math.Trunc(f) {
		return fmt.Errorf("must be a whole number of at least 0, is %v", value)
	}
	*into = int(f)
	return nil
}

// number is a number as a YAML or JSON decoder gives it.
func number(value any) (float64, bool) {
	switch n := value.(type) {
	case int:
		return float64(n), true
	case int64:
		return float64(n), true
	case float64:
		return n, true
	}
	return 0, false
}
