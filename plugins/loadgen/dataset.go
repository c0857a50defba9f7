// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
)

// Message is one message of a chat.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Dataset is a list of real prompts.
type Dataset struct {
	Samples []Sample
	// Skipped counts the ShareGPT entries in which no human says anything; the public file has some.
	Skipped int
}

// Sample is one prompt of a dataset.
type Sample struct {
	Messages []Message // at least one; the last one is the user's
	Output   int       // tokens wanted
}

// DatasetOutput is the length of the answers to samples that do not say one, in tokens.
const DatasetOutput = 256

// tokensPerWord estimates the tokens of an English text from its words; tokenizers of current models
// are near it.
const tokensPerWord = 1.3

// ReadDataset reads prompts from JSON lines or from a JSON array. An entry has a "prompt", or "messages"
// with role and content, and may have "output_tokens" (or "max_tokens", or else DatasetOutput counts); of
// messages, what follows the last one of the user is left out. Or it is shaped as ShareGPT's:
// "conversations" with "from" and "value", of which the first turn of the human is the prompt (with
// a system message before it), and the length of the answer that follows, estimated at 1.3 tokens a
// word, is the length that is asked for. name is the file's, for errors; these name the line or entry.
func ReadDataset(name string, r io.Reader) (*Dataset, error) {
	b := bufio.NewReader(r)
	first, err := begin(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	d := &Dataset{}
	if first == '[' {
		err = d.readArray(b)
	} else if err = jsonLines(b, d.add); err != nil {
		err = fmt.Errorf(":%w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s%w", name, err)
	}
	if len(d.Samples) == 0 {
		return nil, fmt.Errorf("%s: has no prompts", name)
	}
	return d, nil
}

func (d *Dataset) readArray(r io.Reader) error {
	dec := json.NewDecoder(r)
	if _, err := dec.Token(); err != nil {
		return fmt.Errorf(": %w", err)
	}
	for i := 0; dec.More(); i++ {
		var entry json.RawMessage
		if err := dec.Decode(&entry); err != nil {
			return fmt.Errorf("[%d]: %w", i, err)
		}
		if err := d.add(entry); err != nil {
			return fmt.Errorf("[%d]: %w", i, err)
		}
	}
	if _, err := dec.Token(); err != nil {
		return fmt.Errorf(": the array does not end: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New(": something follows the array")
	}
	return nil
}

// entry is one entry of any of the shapes.
type entry struct {
	Prompt        *string   `json:"prompt"`
	Messages      []turn    `json:"messages"`
	Conversations []replica `json:"conversations"`
	OutputTokens  *float64  `json:"output_tokens"`
	MaxTokens     *float64  `json:"max_tokens"`
}

type turn struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// replica is a turn as ShareGPT has it.
type replica struct {
	From  string `json:"from"`
	Value string `json:"value"`
}

func (d *Dataset) add(data []byte) error {
	var e entry
	if err := json.Unmarshal(data, &e); err != nil {
		return plainly(err)
	}
	var s Sample
	var err error
	switch {
	case e.Prompt != nil:
		s.Messages = []Message{{Role: "user", Content: *e.Prompt}}
	case e.Messages != nil:
		s.Messages, err = messages(e.Messages)
	case e.Conversations != nil:
		if s = firstTurn(e.Conversations); s.Messages == nil {
			d.Skipped++
			return nil
		}
	default:
		return errors.New(`needs "prompt", "messages" or "conversations"`)
	}
	if err != nil {
		return err
	}
	if strings.TrimSpace(s.Messages[len(s.Messages)-1].Content) == "" {
		return errors.New("the prompt is empty")
	}
	for _, n := range []*float64{e.OutputTokens, e.MaxTokens} {
		if n == nil {
			continue
		}
		if !isWhole(*n, 1) {
			return fmt.Errorf("the output tokens must be a whole number from 1 to %g, are %g", maxTokens, *n)
		}
		s.Output = int(*n)
		break
	}
	if s.Output == 0 {
		s.Output = DatasetOutput
	}
	d.Samples = append(d.Samples, s)
	return nil
}

// roles of messages that can be sent as they are; one of a tool answers a call that is not in its text.
var roles = []string{"system", "developer", "user", "assistant"}

// messages takes a chat up to its last user message: what comes after is the answer.
func messages(turns []turn) ([]Message, error) {
	var out []Message
	end := 0
	for i, t := range turns {
		if !slices.Contains(roles, t.Role) {
			return nil, fmt.Errorf("messages[%d]: the role %q is none of %s", i, t.Role, strings.Join(roles, ", "))
		}
		content, err := plainText(t.Content)
		if err != nil {
			return nil, fmt.Errorf("messages[%d]: %w", i, err)
		}
		out = append(out, Message{t.Role, content})
		if t.Role == "user" {
			end = len(out)
		}
	}
	if end == 0 {
		return nil, errors.New(`messages: none has the role "user"`)
	}
	return out[:end], nil
}

// plainText is a text, or the texts of a list of parts.
func plainText(raw json.RawMessage) (string, error) {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s, nil
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return "", errors.New("content must be text or a list of parts")
	}
	var texts []string
	for _, p := range parts {
		if p.Type != "text" {
			return "", fmt.Errorf("content of type %q is not supported, only text", p.Type)
		}
		texts = append(texts, p.Text)
	}
	return strings.Join(texts, "\n"), nil
}

// firstTurn is what the human says first, after a system message if there is one; without messages if
// the human says nothing. A length of 0 is not known.
func firstTurn(turns []replica) (s Sample) {
	for i, t := range turns {
		switch {
		case t.From == "system":
			s.Messages = append(s.Messages, Message{"system", t.Value})
		case (t.From == "human" || t.From == "user") && strings.TrimSpace(t.Value) != "":
			s.Messages = append(s.Messages, Message{"user", t.Value})
			if i+1 < len(turns) && turns[i+1].From != t.From {
				s.Output = min(int(math.Round(tokensPerWord*float64(len(strings.Fields(turns[i+1].Value))))), maxTokens)
			}
			return s
		}
	}
	return Sample{}
}

// order is the order in which samples are drawn: every one once in each pass.
type order struct{ permutation []int }

func newOrder(seed uint64, n int) order {
	return order{rand.New(rand.NewPCG(mix(seed), uint64(n))).Perm(n)}
}

func (o order) at(index int) int { return o.permutation[index%len(o.permutation)] }
