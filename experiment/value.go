// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Value is one setting of a parameter: an integer, a float, a string or a bool.
// Values are comparable with ==; a float without a fraction is the integer, so
// 256.0 and 256 are one value whichever way they were read. The zero Value is "".
type Value struct {
	kind kind
	num  uint64 // bits of the int64 or float64, or 0/1 for a bool
	text string
}

type kind uint8

const (
	stringKind kind = iota
	intKind
	floatKind
	boolKind
)

// Int returns an integer value.
func Int(i int64) Value { return Value{kind: intKind, num: uint64(i)} }

// Float returns a numeric value; an integral f up to 2^53 becomes an integer.
func Float(f float64) Value {
	if f == math.Trunc(f) && math.Abs(f) <= 1<<53 {
		return Int(int64(f))
	}
	return Value{kind: floatKind, num: math.Float64bits(f)}
}

// String returns a text value.
func String(s string) Value { return Value{text: s} }

// Bool returns a switch value.
func Bool(b bool) Value {
	if b {
		return Value{kind: boolKind, num: 1}
	}
	return Value{kind: boolKind}
}

// String gives the value as it stands on a command line: integers and floats
// plainly (1048576, 0.9), never with an exponent.
func (v Value) String() string {
	switch v.kind {
	case intKind:
		return strconv.FormatInt(int64(v.num), 10)
	case floatKind:
		return strconv.FormatFloat(math.Float64frombits(v.num), 'f', -1, 64)
	case boolKind:
		return strconv.FormatBool(v.num == 1)
	default:
		return v.text
	}
}

// Number returns the value as a float64 when it is an integer or a float.
func (v Value) Number() (float64, bool) {
	switch v.kind {
	case intKind:
		return float64(int64(v.num)), true
	case floatKind:
		return math.Float64frombits(v.num), true
	default:
		return 0, false
	}
}

// Int64 returns the value when it is an integer.
func (v Value) Int64() (int64, bool) { return int64(v.num), v.kind == intKind }

// Truth returns the value when it is a bool.
func (v Value) Truth() (value, ok bool) { return v.num == 1, v.kind == boolKind }

// Text returns the value when it is a string.
func (v Value) Text() (string, bool) { return v.text, v.kind == stringKind }

// Any returns the value as int64, float64, bool or string.
func (v Value) Any() any {
	switch v.kind {
	case intKind:
		return int64(v.num)
	case floatKind:
		return math.Float64frombits(v.num)
	case boolKind:
		return v.num == 1
	default:
		return v.text
	}
}

// MarshalJSON writes the value as a JSON number, bool or string.
func (v Value) MarshalJSON() ([]byte, error) {
	switch v.kind {
	case intKind, floatKind:
		return []byte(v.String()), nil
	default:
		return json.Marshal(v.Any())
	}
}

// UnmarshalJSON reads a JSON number, bool or string; anything else is an error.
func (v *Value) UnmarshalJSON(data []byte) error {
	var raw any
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	switch x := raw.(type) {
	case string:
		*v = String(x)
	case bool:
		*v = Bool(x)
	case float64:
		// Integers beyond 2^53 keep their digits.
		if i, err := strconv.ParseInt(string(data), 10, 64); err == nil {
			*v = Int(i)
			return nil
		}
		*v = Float(x)
	default:
		return fmt.Errorf("%s is not a number, a string or a bool", data)
	}
	return nil
}

// Params are the settings of one trial: role → parameter → value. The role
// "default" stands for every role that is not named on its own. A nil or empty
// Params is the baseline: the template unchanged.
type Params map[string]map[string]Value

// DefaultRole is the role whose parameters apply to every role of a template.
const DefaultRole = "default"

// Key is a canonical text of the settings: equal settings have equal keys.
func (p Params) Key() string {
	var b strings.Builder
	p.each(func(role, name string, v Value) {
		fmt.Fprintf(&b, "%q.%q=%d:%q;", role, name, v.kind, v.String())
	})
	return b.String()
}

// String lists the settings for people: "maxNumSeqs=256 prefill.tp=2".
func (p Params) String() string {
	var words []string
	p.each(func(role, name string, v Value) {
		if role != DefaultRole {
			name = role + "." + name
		}
		words = append(words, name+"="+v.String())
	})
	return strings.Join(words, " ")
}

func (p Params) each(visit func(role, name string, v Value)) {
	for _, role := range slices.Sorted(maps.Keys(p)) {
		for _, name := range slices.Sorted(maps.Keys(p[role])) {
			visit(role, name, p[role][name])
		}
	}
}
