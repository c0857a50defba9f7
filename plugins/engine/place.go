// SPDX-License-Identifier: Apache-2.0

package engine

// placeKind tells what holds a word.
type placeKind int

const (
	inList     placeKind = iota // an element of command and args
	inScript                    // a word of a shell script
	inEnv                       // a word of an environment variable's value
	inShellVar                  // a word of a variable that the script sets
)

// place is where a word of the engine's command line is written.
type place struct {
	kind    placeKind
	element int // of the argv; for a word of a script the element with the script
	// start and end are the word's bytes in the script. A word of a variable has
	// those of the expansion here.
	start, end int
	// gap is where the white space before the word starts, in the script, and
	// behind is where a word after this one goes.
	gap, behind int
	// listed tells that the word is an element that the script reads by "$@".
	listed bool
	// variable and from, to are the variable and the word's bytes in its value.
	variable string
	from, to int
	// alone tells that an expansion gives this word and nothing else.
	alone bool
	label string // for messages
}

func (p place) String() string { return p.label }
