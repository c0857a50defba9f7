// SPDX-License-Identifier: Apache-2.0

package experiment

import "fmt"

// Stop says why no further trial of a template is worth it, with the numbers
// that decided, or "" to go on. The rules are tried in order and the first match
// wins:
//
//  0. the last trial was refused for good (ClassRefused);
//  1. maxConsecutiveErrors execution errors at the end, however few trials there are;
//  2. maxConsecutiveSLAFailures missed SLAs at the end; an execution error in
//     between neither counts nor resets;
//  3. maxSLAFailureRate of all measured trials missed the SLA; reached counts.
//
// Rules 2 and 3 wait for minTrials finished trials. Reaching the limit of
// trials is not a matter of Stop.
func (s Strategy) Stop(trials []Trial) string {
	e := s.EarlyTermination
	var errorsAtEnd, missesAtEnd, misses, measured int
	errorsOpen, missesOpen := true, true
	for i := len(trials) - 1; i >= 0; i-- {
		outcome := trials[i].Outcome()
		if outcome == Errored {
			if errorsOpen {
				errorsAtEnd++
			}
			continue
		}
		errorsOpen = false
		measured++
		if outcome == Feasible {
			missesOpen = false
			continue
		}
		misses++
		if missesOpen {
			missesAtEnd++
		}
	}
	switch {
	case len(trials) > 0 && trials[len(trials)-1].Reason == ClassRefused:
		return "refused for good: " + trials[len(trials)-1].Error
	case e.MaxConsecutiveErrors > 0 && errorsAtEnd >= e.MaxConsecutiveErrors:
		return fmt.Sprintf("%d consecutive execution errors reached maxConsecutiveErrors %d", errorsAtEnd, e.MaxConsecutiveErrors)
	case len(trials) < e.MinTrials:
		return ""
	case e.MaxConsecutiveSLAFailures > 0 && missesAtEnd >= e.MaxConsecutiveSLAFailures:
		return fmt.Sprintf("%d consecutive SLA failures reached maxConsecutiveSLAFailures %d", missesAtEnd, e.MaxConsecutiveSLAFailures)
	case e.MaxSLAFailureRate > 0 && measured > 0 && float64(misses)/float64(measured) >= e.MaxSLAFailureRate:
		return fmt.Sprintf("SLA failure rate %.2f (%d of %d measured trials) reached maxSLAFailureRate %s",
			float64(misses)/float64(measured), misses, measured, Float(e.MaxSLAFailureRate))
	}
	return ""
}
