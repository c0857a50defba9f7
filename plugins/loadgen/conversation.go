// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Conversations are chats of several turns. All share one system prompt; each adds a part of its own to it,
// and every turn sends the whole history, with the server's real answers but not its reasoning, and a new
// user message. Between turns there is a pause, as of a tool that is called; it is in no latency.
// A turn that fails ends its conversation.
//
// With the chat API the history is a list of messages. With completions it is one text: the contents of
// the messages with an empty line between any two, without roles.
type Conversations struct {
	NumConversations int
	// Lengths in tokens. The first two may be zero.
	SharedSystemPromptLen, DynamicSystemPromptLen Length
	InputTokensPerTurn, OutputTokensPerTurn       Length
	// TurnsPerConversation counts turns, ToolCall milliseconds.
	TurnsPerConversation, ToolCall Length
	// Seed decides, with the number of a conversation, how many turns it has, how long they are and how
	// long it pauses; 0 means Config.Seed. The words always come from Config.Seed: levels with
	// equal conversations still share no text that a server could have cached.
	Seed uint64
}

// maxTurns bounds all turns together: they are planned before the load begins.
const maxTurns = 1e7

// conversationKey is a key of a conversation replay that takes a distribution.
type conversationKey struct {
	name     string
	field    func(*Conversations) *Length
	unit     unit
	required bool
}

var conversationKeys = []conversationKey{
	{"sharedSystemPromptLen", func(c *Conversations) *Length { return &c.SharedSystemPromptLen }, unit{"tokens", 0, 1}, false},
	{"dynamicSystemPromptLen", func(c *Conversations) *Length { return &c.DynamicSystemPromptLen }, unit{"tokens", 0, 1}, false},
	{"turnsPerConversation", func(c *Conversations) *Length { return &c.TurnsPerConversation }, unit{"turns", 1, 1}, false},
	{"inputTokensPerTurn", func(c *Conversations) *Length { return &c.InputTokensPerTurn }, tokenCount, true},
	{"outputTokensPerTurn", func(c *Conversations) *Length { return &c.OutputTokensPerTurn }, tokenCount, true},
	{"toolCallLatencySec", func(c *Conversations) *Length { return &c.ToolCall }, unit{"seconds", 0, 1000}, false},
}

// ParseConversations reads a conversation replay from a decoded YAML or JSON mapping. Its keys are
// numConversations, inputTokensPerTurn and outputTokensPerTurn, which are required, and
// sharedSystemPromptLen (default 0), dynamicSystemPromptLen (0), turnsPerConversation (1),
// toolCallLatencySec (0) and seed (that of the level).
//
// A length, a number of turns or a latency is a number, or a distribution:
//
//	{type: normal, mean: 200, stdDev: 50}     or lognormal; min (default 1) and max (mean + 3·stdDev) limit it
//	{type: uniform, min: 10, max: 1000}
//	{type: fixed, mean: 200}                  or min and max, which are then equal
//
// What a type does not need is ignored. Latencies are kept in milliseconds. The error names every problem
// by its key, such as inputTokensPerTurn.mean.
func ParseConversations(v any) (*Conversations, error) {
	object, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("must be a mapping, is %v", v)
	}
	c := &Conversations{TurnsPerConversation: FixedLength(1)}
	errs := unknownKeys(object, "", append(keyNames(), "numConversations", "seed"))
	var err error
	if c.NumConversations, err = whole(object, "numConversations", 1); err != nil {
		errs = append(errs, err)
	}
	for _, key := range conversationKeys {
		value, given := object[key.name]
		switch {
		case given:
			var problems []error
			*key.field(c), problems = parseDistribution(key.name, value, key.unit)
			errs = append(errs, problems...)
		case key.required:
			errs = append(errs, fmt.Errorf("%s: is required", key.name))
		}
	}
	if _, given := object["seed"]; given {
		n, err := whole(object, "seed", 0)
		if err != nil {
			errs = append(errs, err)
		}
		c.Seed = uint64(n)
	}
	if len(errs) == 0 {
		errs = append(errs, c.validate())
	}
	return c, errors.Join(errs...)
}

func keyNames() (list []string) {
	for _, key := range conversationKeys {
		list = append(list, key.name)
	}
	return list
}

func (c *Conversations) validate() error {
	var errs []error
	if c.NumConversations < 1 {
		errs = append(errs, errors.New("numConversations: must be at least 1"))
	}
	for _, key := range conversationKeys {
		l := *key.field(c)
		if l == (Length{}) && key.unit.least == 0 {
			continue
		}
		if err := l.validate(key.unit); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key.name, err))
		}
	}
	if most := float64(c.NumConversations) * float64(c.TurnsPerConversation.Longest()); most > maxTurns {
		errs = append(errs, fmt.Errorf("numConversations: with turnsPerConversation there can be %g turns, more than %g", most, maxTurns))
	}
	return errors.Join(errs...)
}

// conversation is one chat, drawn in advance.
type conversation struct {
	number      int
	shared, own int // tokens of the system prompt
	input       []int
	output      []int
	pause       []time.Duration // before each turn but the first
	words       uint64          // seed of the words
}

// draw plans a conversation; it depends on nothing but the seed and the number.
func (c *Conversations) draw(seed uint64, number int) conversation {
	r := random(seed, number)
	// One system prompt for all: its length depends on the seed alone.
	shared := c.SharedSystemPromptLen.Draw(random(seed, -2))
	out := conversation{number: number, shared: shared, own: c.DynamicSystemPromptLen.Draw(r)}
	for range max(1, c.TurnsPerConversation.Draw(r)) {
		out.input = append(out.input, c.InputTokensPerTurn.Draw(r))
		out.output = append(out.output, c.OutputTokensPerTurn.Draw(r))
		out.pause = append(out.pause, time.Duration(c.ToolCall.Draw(r))*time.Millisecond)
	}
	return out
}

// turns is the number of turns in all conversations of a level.
func (c *Conversations) turns(level uint64) int {
	n := 0
	for i := range c.NumConversations {
		n += len(c.draw(c.seed(level), i).input)
	}
	return n
}

// seed of the lengths: its own, or that of the level.
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
		parts = append(parts, text.part(random(c.words, -2), c.shared))
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
	return random(mix(c.words^mix(uint64(c.number)+1)), turn)
}

// tokens is the length of the prompt of a turn, without what templates add.
func (c *conversation) tokens(turn int) int {
	n := c.shared + c.own + c.input[turn]
	for i := range turn {
		n += c.input[i] + c.output[i]
	}
	return n
}
