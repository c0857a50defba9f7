// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"fmt"
	"strings"
)

// MaxWorkloadName is the longest name of a trial's workload: StatefulSets,
// LeaderWorkerSets and labels add up to 23 characters to it and must stay below 63.
const MaxWorkloadName = 40

// WorkloadName is the name of a trial's workload: it begins with a letter, keeps
// the trial number whole and tells experiments and templates with a common
// beginning apart by a checksum.
func WorkloadName(experiment, template string, index int) string {
	suffix := fmt.Sprintf("-%08x-%d", checksum([]byte(experiment+"\x00"+template)), index)
	base := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, experiment+"-"+template)
	if base[0] < 'a' || base[0] > 'z' {
		base = "t" + strings.TrimLeft(base, "-")
	}
	base = base[:min(len(base), MaxWorkloadName-len(suffix))]
	return strings.TrimRight(base, "-") + suffix
}
