// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Conversations are chats of several turns. All share one system prompt; each adds a part of its own to it,
// and every turn sends the whole history, with the server's real answers, and a new user message.
// Between turns there is a pause, as of a tool that is called; it is in no latency.
type Conversations struct {
	NumConversations int
	// Lengths in tokens. The first two may be zero.
	SharedSystemPromptLen, DynamicSystemPromptLen Length
	InputTokensPerTurn, OutputTokensPerTurn       Length
	// TurnsPerConversation counts turns, ToolCall milliseconds.
	TurnsPerConversation, ToolCall Length
	// Seed decides everything that is drawn; 0 means Config.Seed.
	Seed uint64
}

// conversationKeys are the keys of a conversation replay with the defaults of those that may be left out.
var conversationKeys = map[string]func(*Conversations) *Length{
	"sharedSystemPromptLen":  func(c *Conversations) *Length { return &c.SharedSystemPromptLen },
	"dynamicSystemPromptLen": func(c *Conversations) *Length { return &c.DynamicSystemPromptLen },
	"turnsPerConversation":   func(c *Conversations) *Length { return &c.TurnsPerConversation },
	"inputTokensPerTurn":     func(c *Conversations) *Length { return &c.InputTokensPerTurn },
	"outputTokensPerTurn":    func(c *Conversations) *Length { return &c.OutputTokensPerTurn },
	"toolCallLatencySec":     func(c *Conversations) *Length { return &c.ToolCall },
}

// ParseConversations reads a conversation replay from a decoded YAML or JSON mapping. A length, a number
// of turns or a latency is a number, or a distribution: {type: normal, mean: 200, stdDev: 50,
// min: 10, max: 1000}, with the types normal, lognormal, uniform and fixed. The error names every problem
// by its key.
func ParseConversations(v any) (*Conversations, error) {
	object, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("must be a mapping, is %v", v)
	}
	c := &Conversations{TurnsPerConversation: FixedLength(1)}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(object)) {
		value := object[key]
		field, known := conversationKeys[key]
		var err error
		switch {
		case key == "numConversations":
			c.NumConversations, err = whole(value, 1)
		case key == "seed":
			var n int
			n, err = whole(value, 0)
			c.Seed = uint64(n)
		case !known:
			err = fmt.Errorf("unknown key; known: numConversations, seed, %s", strings.Join(slices.Sorted(maps.Keys(conversationKeys)), ", "))
		default:
			scale := 1.0
			if key == "toolCallLatencySec" {
				scale = 1000
			}
			*field(c), err = parseDistribution(value, scale)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
	}
	for _, key := range []string{"numConversations", "inputTokensPerTurn", "outputTokensPerTurn"} {
		if _, given := object[key]; !given {
			errs = append(errs, fmt.Errorf("%s: is required", key))
		}
	}
	if len(errs) == 0 {
		errs = append(errs, c.validate())
	}
	return c, errors.Join(errs...)
}

func (c *Conversations) validate() error {
	var errs []error
	if c.NumConversations < 1 {
		errs = append(errs, errors.New("numConversations: must be at least 1"))
	}
	for _, key := range slices.Sorted(maps.Keys(conversationKeys)) {
		l := *conversationKeys[key](c)
		optional := key == "sharedSystemPromptLen" || key == "dynamicSystemPromptLen" || key == "toolCallLatencySec"
		if optional && l == (Length{}) {
			continue
		}
		if err := l.validate(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
	}
	return errors.Join(errs...)
}

func whole(v any, least int) (int, error) {
	f, ok := number(v)
	if !ok || f != math.Trunc(f) || f < float64(least) || f > maxTokens {
		return 0, fmt.Errorf("must be a whole number from %d to %g, is %v", least, maxTokens, v)
	}
	return int(f), nil
}

func number(v any) (float64, bool) {
	switch n := v.(type) {
	case int:
		return float64(n), true
	case int64:
		return float64(n), true
	case uint64:
		return float64(n), true
	case float64:
		return n, true
	}
	return 0, false
}

// parseDistribution reads a number or a mapping; values are multiplied by scale and rounded.
func parseDistribution(v any, scale float64) (Length, error) {
	if f, ok := number(v); ok {
		if f < 0 || f*scale > maxTokens || f != f {
			return Length{}, fmt.Errorf("must be from 0 to %g, is %v", maxTokens/scale, v)
		}
		if n := int(math.Round(f * scale)); n > 0 {
			return FixedLength(n), nil
		}
		return Length{}, nil
	}
	object, ok := v.(map[string]any)
	if !ok {
		return Length{}, fmt.Errorf("must be a number or a distribution such as {type: normal, mean: 200, stdDev: 50}, is %v", v)
	}
	var l Length
	var errs []error
	values := map[string]float64{}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		switch key {
		case "type":
			name, _ := object[key].(string)
			l.Shape = Shape(name)
		case "min", "max", "mean", "stdDev":
			f, ok := number(object[key])
			if !ok || f < 0 || f*scale > maxTokens {
				errs = append(errs, fmt.Errorf("%s must be a number from 0 to %g, is %v", key, maxTokens/scale, object[key]))
				continue
			}
			values[key] = f * scale
		default:
			errs = append(errs, fmt.Errorf("unknown key %s; known: type, min, max, mean, stdDev", key))
		}
	}
	l.Min, l.Max = int(math.Round(values["min"])), int(math.Round(values["max"]))
	l.Mean, l.StdDev = values["mean"], values["stdDev"]
	switch _, mean := values["mean"]; {
	case l.Shape == "":
		errs = append(errs, fmt.Errorf("type is required: %s", shapes))
	case l.Shape == Fixed && mean && l.Min == 0:
		l = FixedLength(int(math.Round(l.Mean)))
	case l.Shape == Fixed:
		l = FixedLength(l.Min)
	case l.Shape == Uniform:
		l.Mean, l.StdDev = 0, 0
	}
	return l, errors.Join(errs...)
}

// conversation is one chat, drawn in advance.
type conversation struct {
	number      int
	shared, own int // tokens of the system prompt
	input       []int
	output      []int
	pause       []time.Duration // before each turn but the first
	seed        uint64
}

// draw plans a conversation; it depends on nothing but the seed and the number.
func (c *Conversations) draw(seed uint64, number int) conversation {
	r := random(seed, number)
	// One system prompt for all: its length depends on the seed alone.
	shared := c.SharedSystemPromptLen.Draw(random(seed, -2))
	out := conversation{number: number, shared: shared, own: c.DynamicSystemPromptLen.Draw(r), seed: seed}
	for range max(1, c.TurnsPerConversation.Draw(r)) {
		out.input = append(out.input, c.InputTokensPerTurn.Draw(r))
		out.output = append(out.output, c.OutputTokensPerTurn.Draw(r))
		out.pause = append(out.pause, time.Duration(c.ToolCall.Draw(r))*time.Millisecond)
	}
	return out
}

// turns is the number of turns in all conversations.
func (c *Conversations) turns(seed uint64) int {
	n := 0
	for i := range c.NumConversations {
		n += len(c.draw(c.seed(seed), i).input)
	}
	return n
}

// seed is its own, or that of the level.
func (c *Conversations) seed(level uint64) uint64 {
	if c.Seed != 0 {
		return c.Seed
	}
	return level
}

// begin is the history before the first turn.
func (c *conversation) begin(text *calibration) []Message {
	var parts []string
	if c.shared > 0 {
		parts = append(parts, text.part(random(c.seed, -2), c.shared))
	}
	if c.own > 0 {
		parts = append(parts, text.part(c.random(-1), c.own))
	}
	if parts == nil {
		return nil
	}
	return []Message{{Role: "system", Content: strings.Join(parts, " ")}}
}

// ask is the user's message of a turn.
func (c *conversation) ask(text *calibration, turn int) Message {
	return Message{Role: "user", Content: text.part(c.random(turn), c.input[turn])}
}

// random is the source of the words of one message.
func (c *conversation) random(turn int) *rand.Rand {
	return random(mix(c.seed^mix(uint64(c.number)+1)), turn)
}

// tokens is the length of the prompt of a turn, without what templates add.
func (c *conversation) tokens(turn int) int {
	n := c.shared + c.own + c.input[turn]
	for i := range turn {
		n += c.input[i] + c.output[i]
	}
	return n
}
