// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Token ids are drawn from a range that ordinary vocabularies have, clear of the special tokens at the
// beginning.
const (
	lowestID = 1000
	idSpan   = 29001
	// idStep has no factor in common with idSpan = 3·7·1381, so its multiples visit every id once.
	idStep = 7919
)

// random is the source of everything random about one request.
func random(seed uint64, index int) *rand.Rand {
	return rand.New(rand.NewPCG(mix(seed), mix(seed^mix(uint64(index)))))
}

// mix is the finaliser of SplitMix64: neighbouring inputs give unrelated outputs.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// tokenIDs renders a prompt of n random token ids. The first one differs between any 29,001 consecutive
// requests of a level, so they share no prefix that a server could have cached.
func tokenIDs(r *rand.Rand, seed uint64, index, n int) []byte {
	out := append(make([]byte, 0, 6*n+2), '[')
	id := (mix(seed)%idSpan + uint64(index)*idStep) % idSpan
	for range n {
		out = strconv.AppendUint(out, lowestID+id, 10)
		out = append(out, ',')
		id = r.Uint64N(idSpan)
	}
	out[len(out)-1] = ']'
	return out
}

// calibration knows how many words make a prompt of a wanted length.
type calibration struct {
	vocabulary []string
	overhead   float64 // tokens of a prompt beside its words: special tokens, chat template
	perWord    float64
	// count asks the server for the length of a prompt; nil where every word is one token, and where
	// asking would cost a generation.
	count func(ctx context.Context, prompt []byte) (int, error)
}

// calibrate measures two prompts with count. Where count is cheap, it stays in use as long as words are
// not simply one token each.
func calibrate(ctx context.Context, seed uint64, count func(context.Context, []byte) (int, error), cheap bool) (*calibration, error) {
	const few, many = 8, 136
	c := &calibration{vocabulary: strings.Fields(commonWords)}
	r := random(seed, -1)
	lengths := [2]int{few, many}
	for i, words := range lengths {
		n, err := count(ctx, render(extend(nil, words, c.from(r))))
		if err != nil {
			return nil, err
		}
		lengths[i] = n
	}
	c.perWord = float64(lengths[1]-lengths[0]) / (many - few)
	if c.perWord <= 0 {
		return nil, fmt.Errorf("the server counts %d prompt tokens in %d words, but %d in %d", lengths[0], few, lengths[1], many)
	}
	c.overhead = float64(lengths[0]) - few*c.perWord
	if cheap && c.perWord != 1 {
		c.count = count
	}
	return c, nil
}

// prompt renders a text of n tokens, as nearly as the server's tokenizer allows. If counting fails the
// estimate stands: the server's usage shows what came of it.
func (c *calibration) prompt(ctx context.Context, word words, n int) []byte {
	words := c.words(float64(n) - c.overhead)
	text := extend(nil, words, word)
	best, miss := render(text), math.MaxInt
	for tries := 0; c.count != nil && tries < 16; tries++ {
		prompt := render(text[:words])
		have, err := c.count(ctx, prompt)
		if err != nil {
			return best
		}
		if m := max(n-have, have-n); m < miss {
			best, miss = prompt, m
		}
		more := c.words(math.Abs(float64(n - have)))
		switch {
		case have == n || have > n && words == 1:
			return best
		case have > n:
			more = -min(more, words-1)
		}
		words += more
		text = extend(text[:min(words, len(text))], words, word) // other words at the end than before
	}
	return best
}

// words is the number of words, at least one, in so many tokens.
func (c *calibration) words(tokens float64) int { return max(1, int(math.Round(tokens/c.perWord))) }

// part is a text of about n tokens, for a message among others; the chat template's own tokens are not
// counted, nor is the server's tokenizer asked.
func (c *calibration) part(r *rand.Rand, n int) string {
	return strings.Join(extend(nil, c.words(float64(n)), c.from(r)), " ")
}

// words gives the word at a place of a text.
type words func(i int) string

// from draws every word anew.
func (c *calibration) from(r *rand.Rand) words {
	return func(int) string { return c.vocabulary[r.IntN(len(c.vocabulary))] }
}

// extend lengthens a text to n words, if it is shorter.
func extend(text []string, n int, word words) []string {
	for len(text) < n {
		text = append(text, word(len(text)))
	}
	return text
}

// render joins words to a JSON string; they need no escaping.
func render(text []string) []byte { return []byte(`"` + strings.Join(text, " ") + `"`) }

// commonWords mostly have a token each of their own in the usual tokenizers.
const commonWords = `
	about above across after again air all along also always and animal answer any are area around ask
	back base because become before began behind best better between big bird black blue board boat body
	book both bring brought build but call came can car care carry center change check children city class
	clear close cold color come common complete could country course cover cross cut dark day decide deep
	did differ direct distance do does done door down draw dry during each early earth ease east eat
	end enough even ever every example eye face fact fall family far farm fast father feel feet few
	field figure final find fine fire first fish five follow food foot for force form found four free
	friend from front full game gave get girl give gold good govern great green ground group grow had
	half hand happen hard has have head hear heat help here high hold home horse hot hour house idea
	inch island just keep kind king knew know land language large last late laugh lead learn leave left
	less letter life light like line list listen live long look love low machine made main make man many
	map mark may mean measure men might mile mind minute money moon more morning most mother mountain move
	much music must name near need never new next night north note nothing notice now number object off
	often old once one only open order other our out over own page paper part pass pattern people person
	picture piece place plain plan plane plant play point port power press problem produce product pull
	put question quick rain ran reach read ready real record red remember rest right river road rock
	room round rule run said same saw say school science sea second see seem self sentence serve set
	several shape she ship short should show side simple since sing sit six size sleep slow small snow
	some song soon sound south space special stand star start state stay step still stood stop story
	street strong study such sun sure surface table tail take talk teach tell ten test than that the their
	them then there these they thing think this those though thought thousand three through time together
	told too took top toward town travel tree true try turn two under unit until use usual very voice vowel
	wait walk want war warm was watch water way week weight well went were west what wheel when where
	which while white who whole why will wind with wonder wood word work world would write year young`
