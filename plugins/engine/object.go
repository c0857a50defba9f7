// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/llmctl/llmctl/experiment"
)

// object is the value of a JSON flag. Numbers keep their digits.
type object map[string]any

// parseObject reads the JSON text of a flag.
func parseObject(text string) (object, error) {
	v, err := parseJSON(text)
	if err != nil {
		return nil, fmt.Errorf("is not valid JSON: %w", err)
	}
	o, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("is not a JSON object")
	}
	return o, nil
}

func parseJSON(text string) (any, error) {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the value")
	}
	return v, nil
}

// String is the object as one compact line with sorted keys.
func (o object) String() string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(map[string]any(o)); err != nil {
		panic("engine: encode JSON: " + err.Error()) // it was made of decoded JSON and Values
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// merge puts the values of over into o; objects are merged key by key.
func (o object) merge(over map[string]any) {
	for k, v := range over {
		inner, isObject := v.(map[string]any)
		old, wasObject := o[k].(map[string]any)
		if isObject && wasObject {
			object(old).merge(inner)
			continue
		}
		o[k] = clone(v)
	}
}

func clone(v any) any {
	m, ok := v.(map[string]any)
	if !ok {
		return v
	}
	c := object{}
	c.merge(m)
	return map[string]any(c)
}

// nest is {a: {b: v}} for the key a.b.
func nest(key string, v any) map[string]any {
	head, rest, more := strings.Cut(key, ".")
	if more {
		v = nest(rest, v)
	}
	return map[string]any{head: v}
}

// lookup finds the value at a dotted key.
func (o object) lookup(key string) (any, bool) {
	head, rest, more := strings.Cut(key, ".")
	v, ok := o[head]
	if !ok || !more {
		return v, ok
	}
	inner, ok := v.(map[string]any)
	if !ok {
		return nil, false
	}
	return object(inner).lookup(rest)
}

// remove deletes the value at a dotted key.
func (o object) remove(key string) {
	head, rest, more := strings.Cut(key, ".")
	if !more {
		delete(o, head)
		return
	}
	if inner, ok := o[head].(map[string]any); ok {
		object(inner).remove(rest)
	}
}

// dottedValue reads the value of --flag.key as the parser does: JSON if it is
// JSON, a number with a suffix, or else text.
func dottedValue(text string, list bool) any {
	if list {
		items := []any{}
		for item := range strings.SplitSeq(text, ",") {
			items = append(items, item)
		}
		return items
	}
	if v, err := parseJSON(text); err == nil {
		return v
	}
	if n, ok := suffixed(text); ok {
		return json.Number(strconv.FormatInt(n, 10))
	}
	return text
}

var suffixedNumber = regexp.MustCompile(`^(\d+(?:\.\d+)?)([kKmMgGtT])$`)

// suffixed reads 8k (8000), 8K (8192) or 1.5m (1500000); a fraction is allowed
// with decimal suffixes only.
func suffixed(text string) (int64, bool) {
	m := suffixedNumber.FindStringSubmatch(text)
	if m == nil {
		return 0, false
	}
	power := strings.Index("kmgt", strings.ToLower(m[2])) + 1
	if m[2] == strings.ToUpper(m[2]) {
		n, err := strconv.ParseInt(m[1], 10, 64)
		return n << (10 * power), err == nil
	}
	f, err := strconv.ParseFloat(m[1], 64)
	return int64(f * math.Pow10(3*power)), err == nil
}

// jsonOf is a parameter's value inside a JSON flag; a text that looks like a
// list or an object is one.
func jsonOf(v experiment.Value) (any, error) {
	if text, ok := v.Text(); ok {
		if strings.HasPrefix(text, "[") || strings.HasPrefix(text, "{") {
			parsed, err := parseJSON(text)
			if err != nil {
				return nil, fmt.Errorf("%s is not valid JSON: %w", text, err)
			}
			return parsed, nil
		}
		return text, nil
	}
	if b, ok := v.Truth(); ok {
		return b, nil
	}
	return json.Number(v.String()), nil
}
