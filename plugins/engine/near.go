// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"strings"
)

// nearNames lists up to three names that a misspelt one may mean, nearest first.
func nearNames(name string, names []string) []string {
	type match struct {
		name     string
		distance int
	}
	var near []match
	lower := strings.ToLower(name)
	for _, n := range names {
		d := editDistance(lower, strings.ToLower(n))
		if d <= max(2, len(name)/3) || strings.Contains(strings.ToLower(n), lower) {
			near = append(near, match{n, d})
		}
	}
	slices.SortStableFunc(near, func(a, b match) int { return a.distance - b.distance })
	var out []string
	for _, m := range near[:min(3, len(near))] {
		out = append(out, m.name)
	}
	return out
}

// editDistance is Levenshtein's: insertions, deletions and replacements of a byte.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
