// SPDX-License-Identifier: Apache-2.0

package loadgen

import "bytes"

// scanner reads the usual shape of a chunk without allocating. Each method returns false where it
// meets invalid JSON or anything unusual: an escaped or repeated key, a type that is not expected, tool
// calls, an error. The caller then starts again with encoding/json, so the scanner only has to be right
// where it says true; FuzzDecode compares the two.
type scanner struct {
	b []byte
	i int
}

// maxNesting bounds the recursion; deeper chunks are left to encoding/json.
const maxNesting = 32

func (s *scanner) chunk(c *chunk) bool {
	if !s.open('{') {
		return false
	}
	var seen uint
	for first := true; ; first = false {
		key, more, ok := s.member(first)
		if !ok {
			return false
		}
		if !more {
			s.space()
			return s.i == len(s.b)
		}
		switch string(key) {
		case "choices":
			ok = once(&seen, 1) && s.choices(c)
		case "usage":
			ok = once(&seen, 2) && s.usage(&c.usage)
		case "error":
			ok = once(&seen, 4) && s.null()
		case "object":
			var kind []byte
			kind, ok = s.str()
			ok = ok && once(&seen, 8) && string(kind) != "error" && !escaped(kind)
		default:
			ok = s.skip(0)
		}
		if !ok {
			return false
		}
	}
}

func (s *scanner) choices(c *chunk) bool {
	if s.null() {
		return true
	}
	if !s.open('[') {
		return false
	}
	for first := true; ; first = false {
		more, ok := s.more(first, ']')
		if !ok || !more {
			return ok
		}
		if !s.choice(c) {
			return false
		}
	}
}

func (s *scanner) choice(c *chunk) bool {
	if !s.open('{') {
		return false
	}
	var d delta
	var seen uint
	for first := true; ; first = false {
		key, more, ok := s.member(first)
		if !ok {
			return false
		}
		if !more {
			c.add(d)
			return true
		}
		switch string(key) {
		case "text":
			d.text, ok = s.strOrNull()
			ok = ok && once(&seen, 1)
		case "delta":
			ok = once(&seen, 2) && s.delta(&d)
		case "finish_reason":
			ok = once(&seen, 4) && s.finish(c)
		default:
			ok = s.skip(0)
		}
		if !ok {
			return false
		}
	}
}

func (s *scanner) delta(d *delta) bool {
	if s.null() {
		return true
	}
	if !s.open('{') {
		return false
	}
	var seen uint
	for first := true; ; first = false {
		key, more, ok := s.member(first)
		if !ok || !more {
			return ok
		}
		switch string(key) {
		case "content":
			d.content, ok = s.strOrNull()
			ok = ok && once(&seen, 1)
		case "reasoning_content":
			d.reasoningContent, ok = s.strOrNull()
			ok = ok && once(&seen, 2)
		case "reasoning":
			d.reasoning, ok = s.strOrNull()
			ok = ok && once(&seen, 4)
		case "tool_calls":
			ok = once(&seen, 8) && (s.null() || s.emptyArray())
		default:
			ok = s.skip(0)
		}
		if !ok {
			return false
		}
	}
}

func (s *scanner) finish(c *chunk) bool {
	reason, ok := s.strOrNull()
	if !ok || escaped(reason) {
		return false
	}
	switch string(reason) {
	case "":
	case finishStop: // the usual ones cost no allocation
		c.finish = finishStop
	case finishLength:
		c.finish = finishLength
	default:
		for _, b := range reason {
			if b >= 0x80 { // may be invalid UTF-8, which encoding/json replaces
				return false
			}
		}
		c.finish = string(reason)
	}
	return true
}

func (s *scanner) usage(u *usage) bool {
	if s.null() {
		return true
	}
	if !s.open('{') {
		return false
	}
	var seen uint
	for first := true; ; first = false {
		key, more, ok := s.member(first)
		if !ok || !more {
			return ok
		}
		switch string(key) {
		case "prompt_tokens":
			ok = once(&seen, 1) && s.count(&u.prompt)
		case "completion_tokens":
			ok = once(&seen, 2) && s.count(&u.completion)
		default:
			ok = s.skip(0)
		}
		if !ok {
			return false
		}
	}
}

// once reports whether the bit is new in seen, and sets it.
func once(seen *uint, bit uint) bool {
	fresh := *seen&bit == 0
	*seen |= bit
	return fresh
}

// space skips white space and returns the byte that follows, or 0 at the end.
func (s *scanner) space() byte {
	for ; s.i < len(s.b); s.i++ {
		switch b := s.b[s.i]; b {
		case ' ', '\t', '\n', '\r':
		default:
			return b
		}
	}
	return 0
}

// open consumes the given bracket.
func (s *scanner) open(bracket byte) bool {
	if s.space() != bracket {
		return false
	}
	s.i++
	return true
}

// more consumes a comma or the closing bracket.
func (s *scanner) more(first bool, closing byte) (more, ok bool) {
	b := s.space()
	switch {
	case b == closing:
		s.i++
		return false, true
	case first:
		return true, b != 0
	case b == ',':
		s.i++
		return true, s.space() != closing
	default:
		return false, false
	}
}

// member consumes up to and including the colon of an object's next member, or its closing brace.
func (s *scanner) member(first bool) (key []byte, more, ok bool) {
	if more, ok = s.more(first, '}'); !ok || !more {
		return nil, false, ok
	}
	if key, ok = s.str(); !ok || escaped(key) || s.space() != ':' {
		return nil, false, false
	}
	s.i++
	return key, true, true
}

// str consumes a string and returns its inside, still escaped.
func (s *scanner) str() ([]byte, bool) {
	if s.space() != '"' {
		return nil, false
	}
	s.i++
	start := s.i
	for i := start; i < len(s.b); i++ { // the hottest loop of the package, hence the local index
		switch c := s.b[i]; {
		case c == '"':
			s.i = i + 1
			return s.b[start:i], true
		case c < ' ':
			return nil, false
		case c == '\\':
			if s.i = i; !s.escape() {
				return nil, false
			}
			i = s.i - 1
		}
	}
	return nil, false
}

// escape consumes a backslash and what it escapes.
func (s *scanner) escape() bool {
	rest := s.b[s.i+1:]
	if len(rest) == 0 {
		return false
	}
	switch rest[0] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.i += 2
		return true
	case 'u':
		if len(rest) < 5 {
			return false
		}
		for _, h := range rest[1:5] {
			if (h < '0' || h > '9') && (h < 'a' || h > 'f') && (h < 'A' || h > 'F') {
				return false
			}
		}
		s.i += 6
		return true
	default:
		return false
	}
}

func escaped(b []byte) bool { return bytes.IndexByte(b, '\\') >= 0 }

func (s *scanner) strOrNull() ([]byte, bool) {
	if s.null() {
		return nil, true
	}
	return s.str()
}

// null consumes null if it is next.
func (s *scanner) null() bool { return s.space() == 'n' && s.literal("null") }

func (s *scanner) literal(word string) bool {
	if len(s.b)-s.i < len(word) || string(s.b[s.i:s.i+len(word)]) != word {
		return false
	}
	s.i += len(word)
	return true
}

func (s *scanner) emptyArray() bool {
	if !s.open('[') {
		return false
	}
	more, ok := s.more(true, ']')
	return ok && !more
}

// count consumes null or a whole number of at most 15 digits.
func (s *scanner) count(n *int) bool {
	if s.null() {
		return true
	}
	start, v := s.i, 0
	for ; s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9'; s.i++ {
		if s.i-start >= 15 {
			return false
		}
		v = v*10 + int(s.b[s.i]-'0')
	}
	digits := s.i - start
	if digits == 0 || digits > 1 && s.b[start] == '0' || s.i < len(s.b) && inNumber(s.b[s.i]) {
		return false
	}
	*n = v
	return true
}

func inNumber(b byte) bool { return b == '.' || b == 'e' || b == 'E' }

// skip consumes any value.
func (s *scanner) skip(depth int) bool {
	switch b := s.space(); {
	case depth > maxNesting:
		return false
	case b == '"':
		_, ok := s.str()
		return ok
	case b == '{' || b == '[':
		return s.skipNested(depth, b)
	case b == 't':
		return s.literal("true")
	case b == 'f':
		return s.literal("false")
	case b == 'n':
		return s.literal("null")
	default:
		return s.number()
	}
}

func (s *scanner) skipNested(depth int, bracket byte) bool {
	s.i++
	for first := true; ; first = false {
		var more, ok bool
		if bracket == '{' {
			_, more, ok = s.member(first)
		} else {
			more, ok = s.more(first, ']')
		}
		if !ok || !more {
			return ok
		}
		if !s.skip(depth + 1) {
			return false
		}
	}
}

// number consumes a number: -? int frac? exp?
func (s *scanner) number() bool {
	if s.peek() == '-' {
		s.i++
	}
	if s.peek() == '0' {
		s.i++
	} else if !s.digits() {
		return false
	}
	if s.peek() == '.' {
		s.i++
		if !s.digits() {
			return false
		}
	}
	if b := s.peek(); b == 'e' || b == 'E' {
		s.i++
		if b := s.peek(); b == '+' || b == '-' {
			s.i++
		}
		return s.digits()
	}
	return true
}

func (s *scanner) peek() byte {
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

// digits consumes at least one digit.
func (s *scanner) digits() bool {
	start := s.i
	for b := s.peek(); b >= '0' && b <= '9'; b = s.peek() {
		s.i++
	}
	return s.i > start
}
