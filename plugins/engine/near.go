// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"strings"

	"github.com/llmctl/llmctl/experiment"
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
		d := experiment.EditDistance(lower, strings.ToLower(n))
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
