// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// The tokenizer has no vocabulary file. A token is a run of whole characters
// of at most four bytes that holds a space only at its start; its id is the
// number that its bytes spell, behind all ids of shorter tokens. So every text
// can be turned into ids and back, and appending " word" to a text adds
// exactly the tokens of " word".
const maxTokenBytes = 4

// vocabulary is the number of token ids.
const vocabulary = 1<<8 + 1<<16 + 1<<24 + 1<<32

// nextToken returns the length in bytes of the first token of s.
func nextToken(s string) int {
	n := 0
	for n < len(s) {
		_, size := utf8.DecodeRuneInString(s[n:])
		if n > 0 && (s[n] == ' ' || n+size > maxTokenBytes) {
			break
		}
		n += size
	}
	return n
}

func countTokens(s string) int {
	count := 0
	for len(s) > 0 {
		s = s[nextToken(s):]
		count++
	}
	return count
}

func tokenize(s string) []int {
	ids := []int{}
	for len(s) > 0 {
		n := nextToken(s)
		ids = append(ids, tokenID(s[:n]))
		s = s[n:]
	}
	return ids
}

func tokenID(piece string) int {
	id, offset := 0, 0
	for i := range len(piece) {
		id = id<<8 | int(piece[i])
		if i > 0 {
			offset += 1 << (8 * i)
		}
	}
	return offset + id
}

// detokenize is the inverse of tokenize. Ids that no text gives may spell
// bytes that are not UTF-8.
func detokenize(ids []int) (string, error) {
	var b strings.Builder
	for _, id := range ids {
		if err := checkTokenID(id); err != nil {
			return "", err
		}
		size := 1
		for id >= 1<<(8*size) {
			id -= 1 << (8 * size)
			size++
		}
		for i := size - 1; i >= 0; i-- {
			b.WriteByte(byte(id >> (8 * i)))
		}
	}
	return b.String(), nil
}

func checkTokenID(id int) error {
	if id < 0 || id >= vocabulary {
		return fmt.Errorf("token id %d is out of vocabulary", id)
	}
	return nil
}

// words are the answers' tokens: four bytes each, so that an answer counts as
// many tokens for tokenize as were generated.
const words = " the and for are but not you all any can had her was one our out" +
	" day get has him his how man new now old see two way who boy did" +
	" its let put say she too use dad big red sun sky sea air ice oak" +
	" cup pen map key box car bus van hat toy cat dog cow hen pig fox"

// word returns token i of an answer that starts at word number start.
func word(start, i int) string {
	at := (start + i) % (len(words) / maxTokenBytes) * maxTokenBytes
	return words[at : at+maxTokenBytes]
}
