// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"cmp"
	"slices"
	"strings"
)

// Problem is one thing wrong with an experiment file.
type Problem struct {
	Path    string // where, such as strategy.timeout; "" for the file as a whole
	Message string
}

func (p Problem) String() string {
	if p.Path == "" {
		return p.Message
	}
	return p.Path + ": " + p.Message
}

// Problems is every problem of an experiment file, as one error.
type Problems struct {
	File string
	List []Problem
}

func (e *Problems) Error() string {
	lines := make([]string, 0, len(e.List)+1)
	for _, p := range e.List {
		lines = append(lines, p.String())
	}
	if len(lines) == 1 {
		return e.File + ": " + lines[0]
	}
	return e.File + " has these problems:\n  " + strings.Join(lines, "\n  ")
}

// Nearest is the candidate that begins with word or is closest to it, when it is
// close enough to be meant, or "".
func Nearest(word string, candidates []string) string {
	best, distance := "", len(word)/3+2
	for _, c := range candidates {
		if len(word) > 2 && strings.HasPrefix(strings.ToLower(c), strings.ToLower(word)) {
			return c
		}
		if d := EditDistance(strings.ToLower(word), strings.ToLower(c)); d < distance {
			best, distance = c, d
		}
	}
	return best
}

// EditDistance is Levenshtein's distance in bytes.
func EditDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substitute := diagonal
			if a[i] != b[j] {
				substitute++
			}
			diagonal = row[j+1]
			row[j+1] = min(substitute, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}

func sortProblems(list []Problem) {
	slices.SortStableFunc(list, func(a, b Problem) int { return cmp.Compare(a.Path, b.Path) })
}
